"""The playground: a page to try a running service in a browser, built with Gradio.

It speaks to the service over HTTP as any client does. What is shown for which event is in `conversation`, `drawing` and
`slices`, which know no Gradio; the pages `chat_page`, `pictures_page` and `cell_page` lay it out.
"""

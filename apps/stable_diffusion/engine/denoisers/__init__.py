"""The networks that remove noise, each as the programs see it: a UNet, or a transformer."""

"""The layout of CompVis' and Stability's own code, in which single files and kohya's LoRAs name layers."""

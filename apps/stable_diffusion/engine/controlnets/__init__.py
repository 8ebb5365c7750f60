"""ControlNets: copies of a UNet's first half that read an image, and add what they see to the UNet's own."""

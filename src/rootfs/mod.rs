//! Root file systems: overlay mounts over the layers of an image.

//! Images: references, registries, the store on disk, layers and their unpacking.

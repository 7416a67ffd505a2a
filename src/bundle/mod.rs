//! Bundles: config.json from the configuration of an image and what was asked for.

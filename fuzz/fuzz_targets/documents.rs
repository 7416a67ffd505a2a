//! The texts of registries and about them: manifests, configurations, names, challenges, logins.
//!
//! The first byte selects the kind of text; written values are read again and compared.

#![no_main]

use std::fmt::{Debug, Display};
use std::str::FromStr;

use libfuzzer_sys::fuzz_target;
use oci_hooks_engine::container::HealthPolicy;
use oci_hooks_engine::network::PortMapping;
use oci_hooks_image::{
    CredentialFile, Descriptor, Digest, ImageConfiguration, ImageReference, ManifestDocument,
    Platform,
};

#[path = "../../crates/image/src/registry/challenge.rs"]
mod challenge;

/// Media types that registries announce for documents.
const ANNOUNCED: [Option<&str>; 5] = [
    None,
    Some("application/json"),
    Some("application/vnd.oci.image.index.v1+json"),
    Some("application/vnd.docker.distribution.manifest.v2+json"),
    Some("text/html; charset=utf-8"),
];

fuzz_target!(|input: &[u8]| {
    let Some((&kind, bytes)) = input.split_first() else { return };
    if kind == b'm' {
        return ANNOUNCED.into_iter().for_each(|announced| document(bytes, announced));
    }
    let Ok(text) = str::from_utf8(bytes) else { return };
    match kind {
        b'c' => configuration(text),
        b'r' => reference(text),
        b'd' => drop(check_round_trip::<Digest>(text)),
        b'p' => drop(check_round_trip::<Platform>(text)),
        b'w' => drop(challenge::Challenge::choose(text.lines())),
        b'l' => drop(CredentialFile::parse(text).map_err(|error| error.to_string())),
        b'o' => drop(PortMapping::parse(text).map_err(|error| error.to_string())),
        _ => {}
    }
});

fn document(bytes: &[u8], announced: Option<&str>) {
    match ManifestDocument::parse(bytes, announced) {
        Err(error) => drop(error.to_string()),
        Ok(ManifestDocument::Manifest(manifest)) => {
            let _ = manifest.check_image();
            manifest.layers.iter().chain([&manifest.config]).for_each(check);
        }
        Ok(ManifestDocument::Index(index)) => {
            for wanted in ["linux/amd64", "linux/arm/v7", "windows/386"] {
                match index.choose(&wanted.parse().unwrap()) {
                    Err(error) => drop(error.to_string()),
                    Ok(chosen) => assert!(index.manifests.contains(chosen)),
                }
            }
            index.manifests.iter().for_each(check);
        }
    }
}

/// Checks that a descriptor's digest can be computed and its platform printed.
fn check(descriptor: &Descriptor) {
    let digest = &descriptor.digest;
    assert_eq!(digest.as_str().parse::<Digest>().as_ref(), Ok(digest));
    assert!(matches!(digest.hex().len(), 64 | 128), "{digest}");
    drop(descriptor.platform.as_ref().map(ToString::to_string));
}

fn configuration(text: &str) {
    let Ok(configuration) = ImageConfiguration::parse(text.as_bytes()) else { return };
    drop(configuration.platform.to_string());
    if let Some(check) = &configuration.config.healthcheck {
        drop(HealthPolicy::new(check, configuration.config.shell.as_deref()));
    }
    let written = serde_json::to_vec(&configuration).unwrap();
    assert_eq!(ImageConfiguration::parse(&written).unwrap(), configuration);
}

fn reference(text: &str) {
    let Some(reference) = check_round_trip::<ImageReference>(text) else { return };
    assert_eq!(reference.familiar_name().parse().as_ref(), Ok(&reference));
    for part in [reference.registry(), reference.repository(), reference.target()] {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-/:[]".contains(c);
        assert!(!part.is_empty() && part.chars().all(is_plain), "{part:?}");
        assert!(!part.split('/').any(|part| matches!(part, "" | "." | "..")), "{part:?}");
    }
}

/// Parses a value, prints it, and compares the result of parsing that.
fn check_round_trip<T: FromStr<Err: Debug + Display> + Display + PartialEq + Debug>(text: &str) -> Option<T> {
    let value: T = text.parse().map_err(|error: T::Err| error.to_string()).ok()?;
    assert_eq!(value.to_string().parse::<T>().unwrap(), value);
    Some(value)
}

//! Digests of content, such as `sha256:HEX`: parsing, computing and comparing them.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

use oci_spec::image::{Digest as SpecDigest, DigestAlgorithm};
use serde::{Deserialize, Serialize, Serializer};
use sha2::{Digest as _, Sha256, Sha512};

/// Digest of content: `sha256:` or `sha512:` and lower-case hexadecimal digits.
///
/// Every value is well-formed, so it is safe as a file name, and has an algorithm that this crate
/// can compute.
///
/// ```
/// use oci_hooks_image::Digest;
///
/// let digest = Digest::of(b"hello");
/// assert_eq!(digest.algorithm().name(), "sha256");
/// assert!(digest.to_string().starts_with("sha256:2cf24dba"));
/// assert!("sha256:../../etc/passwd".parse::<Digest>().is_err());
/// ```
#[derive(Clone, PartialEq, Eq, Hash, Deserialize)]
#[serde(try_from = "SpecDigest")]
pub struct Digest(Box<SpecDigest>);

/// Digest algorithm registered by the OCI image specification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HashAlgorithm {
    /// Used by nearly all images.
    Sha256,
    Sha512,
}

/// Error of parsing a digest: malformed, or of an unsupported algorithm.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid digest {text:?}: expected \"sha256:\" and 64 lower-case hexadecimal digits, or \"sha512:\" \
     and 128"
)]
pub struct DigestError {
    pub text: String,
}

impl HashAlgorithm {
    /// Returns the name that digests start with.
    pub fn name(self) -> &'static str {
        match self {
            HashAlgorithm::Sha256 => "sha256",
            HashAlgorithm::Sha512 => "sha512",
        }
    }
}

impl Digest {
    /// Returns the SHA-256 digest of some bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Hasher::hash(HashAlgorithm::Sha256, bytes)
    }

    /// Returns the algorithm.
    pub fn algorithm(&self) -> HashAlgorithm {
        match self.0.algorithm() {
            DigestAlgorithm::Sha256 => HashAlgorithm::Sha256,
            _ => HashAlgorithm::Sha512,
        }
    }

    /// Returns the hexadecimal digits, without the algorithm.
    pub fn hex(&self) -> &str {
        self.0.digest()
    }

    /// Returns the digest as text, `ALGORITHM:HEX`.
    pub fn as_str(&self) -> &str {
        (*self.0).as_ref()
    }

    /// Returns the path of the blob with this digest in an OCI layout.
    pub fn blob_name(&self) -> String {
        format!("blobs/{}/{}", self.algorithm().name(), self.hex())
    }

    /// Returns whether this is the digest of these bytes.
    pub fn is_of(&self, bytes: &[u8]) -> bool {
        Hasher::hash(self.algorithm(), bytes) == *self
    }
}

impl FromStr for Digest {
    type Err = DigestError;

    fn from_str(text: &str) -> Result<Self, DigestError> {
        let digest = text.parse().map_err(|_| DigestError { text: text.to_owned() });
        digest.and_then(|digest: SpecDigest| digest.try_into())
    }
}

impl TryFrom<SpecDigest> for Digest {
    type Error = DigestError;

    fn try_from(digest: SpecDigest) -> Result<Self, DigestError> {
        match digest.algorithm() {
            DigestAlgorithm::Sha256 | DigestAlgorithm::Sha512 => Ok(Digest(Box::new(digest))),
            _ => Err(DigestError { text: digest.to_string() }),
        }
    }
}

impl Ord for Digest {
    fn cmp(&self, other: &Self) -> Ordering {
        self.as_str().cmp(other.as_str())
    }
}

impl PartialOrd for Digest {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

/// Computes a digest incrementally.
#[derive(Clone)]
pub struct Hasher(HasherState);

#[derive(Clone)]
enum HasherState {
    Sha256(Sha256),
    Sha512(Sha512),
}

impl Hasher {
    /// Returns a hasher without input.
    pub fn new(algorithm: HashAlgorithm) -> Self {
        Hasher(match algorithm {
            HashAlgorithm::Sha256 => HasherState::Sha256(Sha256::new()),
            HashAlgorithm::Sha512 => HasherState::Sha512(Sha512::new()),
        })
    }

    /// Hashes more bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        match &mut self.0 {
            HasherState::Sha256(state) => state.update(bytes),
            HasherState::Sha512(state) => state.update(bytes),
        }
    }

    /// Returns the digest of all bytes hashed.
    pub fn finish(self) -> Digest {
        match self.0 {
            HasherState::Sha256(state) => digest(HashAlgorithm::Sha256, &state.finalize()),
            HasherState::Sha512(state) => digest(HashAlgorithm::Sha512, &state.finalize()),
        }
    }

    fn hash(algorithm: HashAlgorithm, bytes: &[u8]) -> Digest {
        let mut hasher = Hasher::new(algorithm);
        hasher.update(bytes);
        hasher.finish()
    }
}

impl fmt::Debug for Hasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hasher").finish_non_exhaustive()
    }
}

fn digest(algorithm: HashAlgorithm, bytes: &[u8]) -> Digest {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    let mut text = String::with_capacity(algorithm.name().len() + 1 + 2 * bytes.len());
    text.push_str(algorithm.name());
    text.push(':');
    for byte in bytes {
        text.push(char::from(HEX[usize::from(byte >> 4)]));
        text.push(char::from(HEX[usize::from(byte & 15)]));
    }
    text.parse().expect("it has the digits of its algorithm")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_of_both_algorithms_are_computed_and_parsed() {
        let abc = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(Digest::of(b"abc").to_string(), abc);
        let digest: Digest = abc.parse().unwrap();
        assert_eq!(digest.hex().len(), 64);
        assert!(digest.is_of(b"abc") && !digest.is_of(b"abd"));
        let long = Hasher::hash(HashAlgorithm::Sha512, b"abc");
        assert_eq!(long.hex().len(), 128);
        assert!(long.as_str().parse::<Digest>().unwrap().is_of(b"abc"));
    }

    #[test]
    fn digest_with_a_path_is_rejected() {
        let hex = "a".repeat(64);
        for bad in [
            "".to_owned(),
            "sha256:".to_owned(),
            "sha256:../../x".to_owned(),
            format!("sha256:../../{}", &hex[6..]),
            format!("sha256:{}", hex.to_uppercase()),
            format!("sha256:{hex}a"),
            format!("sha512:{hex}"),
            format!("md5:{hex}"),
            format!("sha384:{}", "a".repeat(96)),
            format!("blake3:{hex}"),
            format!("SHA256:{hex}"),
            format!("sha256:{}/", &hex[1..]),
            format!(" sha256:{hex}"),
            hex.clone(),
        ] {
            assert!(bad.parse::<Digest>().is_err(), "{bad}");
            assert!(serde_json::from_value::<Digest>(bad.into()).is_err());
        }
    }
}

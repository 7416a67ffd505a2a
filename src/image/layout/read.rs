//! Reading an OCI layout from an archive, which may hold anything.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use oci_spec::image::MediaType;

use crate::image::import::{FileReader, Files, ImportError};
use crate::image::{Descriptor, Document, MAX_MANIFEST_BYTES};

/// An OCI layout in a tar archive that is not compressed. Names of files in it lead nowhere else.
#[derive(Debug)]
pub struct LayoutArchive {
    files: Files,
}

impl LayoutArchive {
    /// Finds the files of an archive; the path is for messages.
    pub fn open(file: File, path: &Path) -> Result<Self, ImportError> {
        let files = Files::of_archive(file, path)?;
        match files.has("index.json") {
            true => Ok(LayoutArchive { files }),
            false => Err(ImportError::Format { path: path.to_owned() }),
        }
    }

    /// Returns the images that `index.json` names.
    pub fn images(&self) -> Result<Vec<Descriptor>, ImportError> {
        let bytes = self.files.read("index.json", MAX_MANIFEST_BYTES)?;
        match Document::parse(&bytes, Some(MediaType::ImageIndex.as_ref()))? {
            Document::Index(index) => Ok(index.manifests),
            Document::Manifest(_) => unreachable!("it was parsed as an index"),
        }
    }

    /// Returns a manifest or an index, and its bytes.
    pub fn document(&self, descriptor: &Descriptor) -> Result<(Document, Vec<u8>), ImportError> {
        let name = descriptor.digest.blob_name();
        let bytes = self.files.read(&name, MAX_MANIFEST_BYTES)?;
        if bytes.len() as u64 != descriptor.size || !descriptor.digest.is_of(&bytes) {
            return Err(ImportError::Digest { name });
        }
        let document = Document::parse(&bytes, Some(descriptor.media_type.as_ref()))?;
        Ok((document, bytes))
    }

    /// Returns the content of a blob, whose digest the reader has to check. Its size is right.
    pub fn blob(&self, descriptor: &Descriptor) -> Result<impl Read + '_, ImportError> {
        let name = descriptor.digest.blob_name();
        match self.files.open_file(&name)? {
            (reader, size) if size == descriptor.size => Ok(reader),
            _ => Err(ImportError::Digest { name }),
        }
    }
}

impl Files {
    /// Reads a file that has a limit.
    fn read(&self, name: &str, max_bytes: u64) -> Result<Vec<u8>, ImportError> {
        let (reader, size): (FileReader<'_>, u64) = self.open_file(name)?;
        if size > max_bytes {
            return Err(ImportError::TooLarge { name: name.to_owned() });
        }
        let mut bytes = Vec::new();
        let result = reader.take(max_bytes).read_to_end(&mut bytes);
        let short = |source: io::Error| ImportError::Read { name: name.to_owned(), source };
        result.map_err(short)?;
        Ok(bytes)
    }
}

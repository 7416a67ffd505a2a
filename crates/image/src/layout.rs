//! OCI layouts as tar archives: written layer by layer, and read by digest.
//!
//! Output is reproducible: the same files give the same archive, byte for byte.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fmt;
use std::fs::File;
use std::io::{self, BufWriter, Read, Seek as _, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use oci_spec::image::MediaType;
use tar::{EntryType, Header};

use super::digest::{HashAlgorithm, Hasher};
use super::import::{FileReader, ImageFiles, ImportError};
use super::{Descriptor, Digest, MAX_MANIFEST_BYTES, ManifestDocument};

const BLOCK_BYTES: u64 = 512;

/// Zero block: padding and end of a tar archive.
const ZEROS: [u8; 512] = [0; 512];

const BUFFER_BYTES: usize = 128 << 10;

/// Compression level of layers: the default of `zstd`.
const LEVEL: i32 = 3;

/// Writer of an OCI layout in a tar archive.
#[derive(Debug)]
pub struct LayoutWriter {
    file: File,
    written: HashSet<Digest>,
}

/// Digests and size of a layer in the archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrittenLayer {
    /// The digest of the compressed layer.
    pub digest: Digest,
    pub diff_id: Digest,
    /// Size of the compressed layer in bytes.
    pub size: u64,
}

/// Builder of a layer. Entries belong to root and have the modification time 0.
pub struct LayerBuilder<'a> {
    archive: tar::Builder<HashingWriter<Compressor<'a>>>,
}

type Compressor<'a> = zstd::Encoder<'static, HashingWriter<BufWriter<&'a File>>>;

impl LayoutWriter {
    /// Begins a layout in an empty file.
    pub fn new(file: File) -> io::Result<Self> {
        let mut writer = LayoutWriter { file, written: HashSet::new() };
        writer.entry("oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#)?;
        Ok(writer)
    }

    /// Adds a small blob, such as a manifest or a configuration, unless the archive has it; returns its digest.
    pub fn blob(&mut self, bytes: &[u8]) -> io::Result<Digest> {
        let digest = Digest::of(bytes);
        if self.written.insert(digest.clone()) {
            self.entry(&digest.blob_name(), bytes)?;
        }
        Ok(digest)
    }

    /// Adds a layer filled by a function. Layers with the same content share one blob.
    pub fn layer<E: From<io::Error>>(
        &mut self,
        fill: impl FnOnce(&mut LayerBuilder<'_>) -> Result<(), E>,
    ) -> Result<WrittenLayer, E> {
        let start = self.file.stream_position()?;
        // The header is written once the digest is known.
        self.file.seek(SeekFrom::Start(start + BLOCK_BYTES))?;
        let layer = compress(&self.file, fill)?;
        if self.written.insert(layer.digest.clone()) {
            let header = header(&layer.digest.blob_name(), layer.size)?;
            self.file.write_all_at(header.as_bytes(), start)?;
            self.pad(layer.size)?;
        } else {
            self.file.set_len(start)?;
            self.file.seek(SeekFrom::Start(start))?;
        }
        Ok(layer)
    }

    /// Adds `index.json`, and ends the archive.
    pub fn finish(mut self, index: &[u8]) -> io::Result<File> {
        self.entry("index.json", index)?;
        self.file.write_all(&[ZEROS, ZEROS].concat())?;
        Ok(self.file)
    }

    fn entry(&mut self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let size = bytes.len() as u64;
        self.file.write_all(header(name, size)?.as_bytes())?;
        self.file.write_all(bytes)?;
        self.pad(size)
    }

    fn pad(&mut self, size: u64) -> io::Result<()> {
        let padding = (BLOCK_BYTES - size % BLOCK_BYTES) % BLOCK_BYTES;
        io::copy(&mut ZEROS.as_slice().take(padding), &mut self.file).map(drop)
    }
}

impl LayerBuilder<'_> {
    /// Adds a directory.
    pub fn directory(&mut self, path: &Path) -> io::Result<()> {
        let mut name = path.as_os_str().to_owned();
        name.push("/");
        let mut header = attributes(EntryType::Directory, 0o755, 0);
        self.archive.append_data(&mut header, name, io::empty())
    }

    /// Adds a file of `size` bytes. A shorter reader is an error, further bytes are ignored.
    pub fn file(
        &mut self,
        path: &Path,
        is_executable: bool,
        size: u64,
        reader: impl Read,
    ) -> io::Result<()> {
        let mode = if is_executable { 0o755 } else { 0o644 };
        let mut header = attributes(EntryType::Regular, mode, size);
        self.archive.append_data(&mut header, path, ExactReader { reader, left: size })
    }

    /// Adds a symbolic link.
    pub fn link(&mut self, path: &Path, target: &Path) -> io::Result<()> {
        let mut header = attributes(EntryType::Symlink, 0o777, 0);
        self.archive.append_link(&mut header, path, target)
    }
}

impl fmt::Debug for LayerBuilder<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LayerBuilder").finish_non_exhaustive()
    }
}

/// Writes a compressed layer at the current offset of a file.
fn compress<E: From<io::Error>>(
    file: &File,
    fill: impl FnOnce(&mut LayerBuilder<'_>) -> Result<(), E>,
) -> Result<WrittenLayer, E> {
    let output = HashingWriter::new(BufWriter::with_capacity(BUFFER_BYTES, file));
    let compressor = zstd::Encoder::new(output, LEVEL)?;
    let mut layer = LayerBuilder { archive: tar::Builder::new(HashingWriter::new(compressor)) };
    fill(&mut layer)?;
    let (compressor, diff_id, _) = layer.archive.into_inner()?.finish();
    let (mut output, digest, size) = compressor.finish()?.finish();
    output.flush()?;
    Ok(WrittenLayer { digest, diff_id, size })
}

/// Returns the tar header of a file of the layout.
fn header(name: &str, size: u64) -> io::Result<Header> {
    let mut header = attributes(EntryType::Regular, 0o644, size);
    header.set_path(OsStr::from_bytes(name.as_bytes()))?;
    header.set_cksum();
    Ok(header)
}

fn attributes(kind: EntryType, mode: u32, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_size(size);
    header
}

/// Reader of exactly `left` bytes.
struct ExactReader<R> {
    reader: R,
    left: u64,
}

impl<R: Read> Read for ExactReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let wanted = usize::try_from(self.left).map_or(buffer.len(), |left| left.min(buffer.len()));
        let count = self.reader.read(&mut buffer[..wanted])?;
        if count == 0 && wanted > 0 {
            let message = "the file shrank while it was read";
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, message));
        }
        self.left -= count as u64;
        Ok(count)
    }
}

/// Writer that hashes and counts the bytes written.
struct HashingWriter<W> {
    writer: W,
    hasher: Hasher,
    bytes: u64,
}

impl<W> HashingWriter<W> {
    fn new(writer: W) -> Self {
        HashingWriter { writer, hasher: Hasher::new(HashAlgorithm::Sha256), bytes: 0 }
    }

    fn finish(self) -> (W, Digest, u64) {
        (self.writer, self.hasher.finish(), self.bytes)
    }
}

impl<W: Write> Write for HashingWriter<W> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        let count = self.writer.write(buffer)?;
        self.hasher.update(&buffer[..count]);
        self.bytes += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }
}

/// OCI layout in an uncompressed tar archive. File names cannot lead out of the archive.
#[derive(Debug)]
pub struct LayoutArchive {
    files: ImageFiles,
}

impl LayoutArchive {
    /// Indexes the files of an archive; the path is for error messages.
    pub fn open(file: File, path: &Path) -> Result<Self, ImportError> {
        let files = ImageFiles::of_archive(file, path)?;
        match files.has("index.json") {
            true => Ok(LayoutArchive { files }),
            false => Err(ImportError::Format { path: path.to_owned() }),
        }
    }

    /// Returns the descriptors in `index.json`.
    pub fn images(&self) -> Result<Vec<Descriptor>, ImportError> {
        let bytes = self.files.read("index.json", MAX_MANIFEST_BYTES)?;
        match ManifestDocument::parse(&bytes, Some(MediaType::ImageIndex.as_ref()))? {
            ManifestDocument::Index(index) => Ok(index.manifests),
            ManifestDocument::Manifest(_) => unreachable!("it was parsed as an index"),
        }
    }

    /// Returns a manifest or an index, and its bytes.
    pub fn document(
        &self,
        descriptor: &Descriptor,
    ) -> Result<(ManifestDocument, Vec<u8>), ImportError> {
        let name = descriptor.digest.blob_name();
        let bytes = self.files.read(&name, MAX_MANIFEST_BYTES)?;
        if bytes.len() as u64 != descriptor.size || !descriptor.digest.is_of(&bytes) {
            return Err(ImportError::Digest { name });
        }
        let document = ManifestDocument::parse(&bytes, Some(descriptor.media_type.as_ref()))?;
        Ok((document, bytes))
    }

    /// Returns a reader of a blob. Its size is checked; checking the digest is left to the caller.
    pub fn blob(&self, descriptor: &Descriptor) -> Result<impl Read + '_, ImportError> {
        let name = descriptor.digest.blob_name();
        match self.files.open_file(&name)? {
            (reader, size) if size == descriptor.size => Ok(reader),
            _ => Err(ImportError::Digest { name }),
        }
    }
}

impl ImageFiles {
    /// Reads a file of limited size.
    fn read(&self, name: &str, max_bytes: u64) -> Result<Vec<u8>, ImportError> {
        let (reader, size): (FileReader<'_>, u64) = self.open_file(name)?;
        if size > max_bytes {
            return Err(ImportError::TooLarge { name: name.to_owned(), limit_bytes: max_bytes });
        }
        let mut bytes = Vec::new();
        let result = reader.take(max_bytes).read_to_end(&mut bytes);
        let short = |source: io::Error| ImportError::Read { name: name.to_owned(), source };
        result.map_err(short)?;
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;
    use crate::{Descriptor, LayoutArchive, MediaType};

    fn layer(writer: &mut LayoutWriter, text: &str) -> WrittenLayer {
        let fill = |layer: &mut LayerBuilder<'_>| {
            layer.directory(Path::new("bin"))?;
            layer.file(Path::new("bin/run"), true, text.len() as u64, Cursor::new(text))?;
            layer.file(Path::new(&"deep/".repeat(60)), false, 0, io::empty())?;
            layer.link(Path::new("run"), Path::new("bin/run"))
        };
        writer.layer::<io::Error>(fill).unwrap()
    }

    #[test]
    fn same_content_gives_the_same_archive_and_one_blob() {
        let write = || {
            let mut writer = LayoutWriter::new(tempfile::tempfile().unwrap()).unwrap();
            let layers =
                [layer(&mut writer, "a"), layer(&mut writer, "a"), layer(&mut writer, "b")];
            assert_eq!(layers[0], layers[1]);
            assert_ne!(layers[0], layers[2]);
            let file = writer.finish(br#"{"schemaVersion":2,"manifests":[]}"#).unwrap();
            let mut bytes = vec![0; usize::try_from(file.metadata().unwrap().len()).unwrap()];
            file.read_exact_at(&mut bytes, 0).unwrap();
            (file, layers, bytes)
        };
        let (_, _, first) = write();
        let (mut file, layers, second) = write();
        assert_eq!(first, second);
        assert_eq!(first.len() % 512, 0);

        file.rewind().unwrap();
        let archive = LayoutArchive::open(file, Path::new("x")).unwrap();
        assert_eq!(archive.images().unwrap(), []);
        for layer in &layers {
            let kind = MediaType::ImageLayerZstd;
            let descriptor = Descriptor::new(kind, layer.digest.clone(), layer.size);
            let mut blob = Vec::new();
            archive.blob(&descriptor).unwrap().read_to_end(&mut blob).unwrap();
            assert!(layer.digest.is_of(&blob));
            assert!(layer.diff_id.is_of(&zstd::decode_all(&*blob).unwrap()));
            let longer = Descriptor { size: layer.size + 1, ..descriptor };
            assert!(archive.blob(&longer).is_err());
        }
    }

    #[test]
    fn shrinking_file_is_an_error() {
        let mut writer = LayoutWriter::new(tempfile::tempfile().unwrap()).unwrap();
        let shrinks = |layer: &mut LayerBuilder<'_>| {
            layer.file(Path::new("a"), false, 10, Cursor::new("short"))
        };
        let error = writer.layer::<io::Error>(shrinks).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }
}

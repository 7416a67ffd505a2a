//! Numbers, byte strings, lists and options in payloads.

use super::{FrameError, HEADER_BYTES};

/// A payload being written.
#[derive(Default)]
pub struct PayloadWriter(pub Vec<u8>);

impl PayloadWriter {
    pub(super) fn u32(&mut self, number: u32) {
        self.0.extend(number.to_le_bytes());
    }

    /// Appends a length as `u32`. A length that does not fit is written as the maximum: the payload
    /// exceeds its limit then anyway.
    fn length(&mut self, length: usize) {
        self.u32(u32::try_from(length).unwrap_or(u32::MAX));
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        self.length(bytes.len());
        self.0.extend_from_slice(bytes);
    }

    pub(super) fn list<T>(&mut self, items: &[T], mut write: impl FnMut(&mut Self, &T)) {
        self.length(items.len());
        for item in items {
            write(self, item);
        }
    }

    pub(super) fn option<T>(&mut self, value: Option<&T>, write: impl FnOnce(&mut Self, &T)) {
        self.0.push(u8::from(value.is_some()));
        if let Some(value) = value {
            write(self, value);
        }
    }

    pub(super) fn into_frame(self, kind: u8) -> Vec<u8> {
        let mut frame = PayloadWriter(Vec::with_capacity(HEADER_BYTES + self.0.len()));
        frame.0.push(kind);
        frame.bytes(&self.0);
        frame.0
    }
}

/// Unread rest of a payload.
pub struct PayloadReader<'p>(pub &'p [u8]);

impl PayloadReader<'_> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], FrameError> {
        let (array, rest) = self.0.split_first_chunk().ok_or(FrameError::Short)?;
        self.0 = rest;
        Ok(*array)
    }

    pub(super) fn u8(&mut self) -> Result<u8, FrameError> {
        Ok(u8::from_le_bytes(self.array()?))
    }

    pub(super) fn u16(&mut self) -> Result<u16, FrameError> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    pub(super) fn u32(&mut self) -> Result<u32, FrameError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(super) fn u64(&mut self) -> Result<u64, FrameError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    pub(super) fn i32(&mut self) -> Result<i32, FrameError> {
        Ok(i32::from_le_bytes(self.array()?))
    }

    pub(super) fn bytes(&mut self) -> Result<Vec<u8>, FrameError> {
        let length = self.u32()? as usize;
        let (bytes, rest) = self.0.split_at_checked(length).ok_or(FrameError::Short)?;
        self.0 = rest;
        Ok(bytes.to_vec())
    }

    /// Reads a list, without reserving memory for the untrusted number of items.
    pub fn list<T>(
        &mut self,
        mut read: impl FnMut(&mut Self) -> Result<T, FrameError>,
    ) -> Result<Vec<T>, FrameError> {
        let mut items = Vec::new();
        for _ in 0..self.u32()? {
            items.push(read(self)?);
        }
        Ok(items)
    }

    pub(super) fn option<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, FrameError>,
    ) -> Result<Option<T>, FrameError> {
        match self.u8()? {
            0 => Ok(None),
            1 => read(self).map(Some),
            _ => Err(FrameError::Invalid("option")),
        }
    }

    pub(super) fn end(&self) -> Result<(), FrameError> {
        if self.0.is_empty() { Ok(()) } else { Err(FrameError::Trailing) }
    }
}

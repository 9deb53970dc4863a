//! Reads the whole body: up to `client_body_buffer_size` into memory, a larger one into a file.

use std::io;
use std::ops::Range;
use std::path::PathBuf;

use bytes::Bytes;
use weir_engine::OpenHow;
use weir_log::Level;

use super::gathering::Gathering;
use super::{BodyFile, RequestBodyError};
use crate::files::temp_file::{Failed, Keep, TempFile};
use crate::request::Request;
use crate::site::core::BodyInFile;

impl Request {
    /// Reads the whole body, within the limits of the location. It is kept for later calls.
    pub async fn read_body(&mut self) -> Result<(), RequestBodyError> {
        self.gather_body(true).await
    }

    /// Reads a body that was already received ([`Request::check_body_received`]) and is not
    /// buffered. It stays in memory: `client_body_in_file_only` and `client_body_buffer_size` are
    /// for buffered bodies.
    pub async fn take_body(&mut self) -> Result<(), RequestBodyError> {
        self.gather_body(false).await
    }

    async fn gather_body(&mut self, buffered: bool) -> Result<(), RequestBodyError> {
        if self.body.whole {
            return Ok(());
        }
        let mut gathering = self.gathering(buffered);
        loop {
            let next = self.next_body_span().await;
            let next = next.inspect_err(|error| self.keep_part(&mut gathering, error))?;
            let Some(piece) = next else { break };
            self.gather(&mut gathering, piece).await?;
        }
        self.gathered(gathering).await
    }

    /// Takes the received part of the body, without waiting. True if the body is complete, as after
    /// [`Request::read_body`]. Otherwise that function reads the rest.
    pub async fn gather_now(&mut self) -> Result<bool, RequestBodyError> {
        if self.body.whole {
            return Ok(true);
        }
        let mut gathering = self.gathering(true);
        while let Some(piece) = self.body_span_now()? {
            self.gather(&mut gathering, piece).await?;
        }
        if self.body.done || self.body.discarding {
            return self.gathered(gathering).await.map(|()| true);
        }
        self.body.gathering = Some(Box::new(gathering));
        Ok(false)
    }

    /// The same after more of the body has arrived ([`Request::body_readable`]).
    pub async fn gather_more(&mut self) -> Result<bool, RequestBodyError> {
        if let Err(error) = self.more_body().await {
            let mut gathering = self.gathering(true);
            self.keep_part(&mut gathering, &error);
            return Err(error);
        }
        self.gather_now().await
    }

    /// The state of a body that was read in part, or a new one.
    fn gathering(&mut self, buffered: bool) -> Gathering {
        if let Some(started) = self.body.gathering.take() {
            return *started;
        }
        let core = &self.conf().core;
        let file_only = buffered && core.client_body_in_file_only != BodyInFile::Off;
        let in_file = self.body.may_keep_file || file_only;
        let room = usize::try_from(core.client_body_buffer_size).unwrap_or(usize::MAX);
        let known = self.body.length.and_then(|n| usize::try_from(n).ok());
        // Over HTTP/1, a body that exceeds the buffer by up to a quarter stays in memory. nginx
        // does the same.
        let limit = if self.carrier.has_frames() { room } else { room + room / 4 };
        let in_head_buffer = !in_file && self.fits_head_buffer(known);
        let in_memory = known.is_some_and(|length| length <= limit && !in_file || in_head_buffer);
        let in_memory = in_memory || !buffered && !in_file;
        let bytes = Vec::with_capacity(known.unwrap_or(0).min(room));
        Gathering { bytes, room, in_memory, in_file, in_head_buffer }
    }

    /// Adds a piece of the body.
    async fn gather(
        &mut self,
        gathering: &mut Gathering,
        piece: Range<usize>,
    ) -> Result<(), RequestBodyError> {
        gathering.bytes.extend_from_slice(self.buf.get(piece).unwrap_or_default());
        // When more is received, the body is no longer in the head's buffer.
        gathering.in_head_buffer &= !self.body_needs_bytes() || self.body.is_read();
        if gathering.bytes.len() > gathering.room
            && !gathering.in_memory
            && !gathering.in_head_buffer
        {
            gathering.bytes = self.write_body(std::mem::take(&mut gathering.bytes)).await?;
        }
        Ok(())
    }

    /// Keeps the part of a body that broke off, for `$request_body`.
    fn keep_part(&mut self, gathering: &mut Gathering, error: &RequestBodyError) {
        if error.is_break() && self.body.file.is_none() {
            self.body.part = std::mem::take(&mut gathering.bytes);
        }
    }

    /// Completes the body.
    async fn gathered(&mut self, gathering: Gathering) -> Result<(), RequestBodyError> {
        if self.body.file.is_some() || (gathering.in_file && self.has_body()) {
            self.write_body(gathering.bytes).await?;
        } else if !gathering.bytes.is_empty() {
            self.body.memory.push(Bytes::from(gathering.bytes));
        }
        self.body.whole = true;
        Ok(())
    }

    /// Replaces the body. A body of more than `room` bytes is written to a file.
    pub async fn put_body(&mut self, bytes: Vec<u8>, room: u64) -> Result<(), RequestBodyError> {
        let len = bytes.len() as u64;
        let is_large = len > room;
        let (memory, rest) = if is_large { (Vec::new(), bytes) } else { (bytes, Vec::new()) };
        self.body.replace(Bytes::from(memory));
        if is_large {
            self.write_body(rest).await?;
        }
        (self.body.length, self.body.received, self.body.whole) = (Some(len), len, true);
        Ok(())
    }

    /// Replaces the body by an existing file. `clean`: its name is removed when the request has
    /// ended.
    #[expect(clippy::disallowed_methods, reason = "a script names the file")]
    pub async fn put_body_file(&mut self, path: PathBuf, clean: bool) -> io::Result<()> {
        let handle = self.event_loop.handle.clone();
        let (file, info) = handle.files().open(&path, &OpenHow::read()).await?;
        let len = info.len;
        self.body.replace(Bytes::new());
        let file = TempFile::of(file, path, clean.then_some(handle));
        self.body.file = Some(BodyFile { file: file.into(), len });
        (self.body.length, self.body.received, self.body.whole) = (Some(len), len, true);
        Ok(())
    }

    /// Whether the body fits into the buffer of the head, together with the head. nginx leaves it
    /// there, however small `client_body_buffer_size` is.
    fn fits_head_buffer(&self, known: Option<usize>) -> bool {
        let (head, limits) = (self.parser.head().end as usize, &self.server.conf.head_limits);
        let buffer = if head < limits.first { limits.first } else { limits.line };
        let came = self.buf.len().saturating_sub(head);
        let needed = known.unwrap_or(came);
        !self.carrier.has_frames() && came > 0 && head.saturating_add(needed) <= buffer
    }

    /// Whether the request has a body, which may be empty.
    fn has_body(&self) -> bool {
        self.body.chunked || self.body.length.is_some()
    }

    /// Appends to the body's file. Returns the empty buffer.
    async fn write_body(&mut self, bytes: Vec<u8>) -> Result<Vec<u8>, RequestBodyError> {
        let BodyFile { file, len: offset } = match self.body.file.take() {
            Some(file) => file,
            None => BodyFile { file: self.create_body_file().await?.into(), len: 0 },
        };
        let (open, len) = (file.file.clone(), offset + bytes.len() as u64);
        self.body.file = Some(BodyFile { file: file.clone(), len });
        let handle = self.event_loop.handle.clone();
        let (result, mut bytes) = handle.files().write_at(&open, bytes, offset).await;
        if let Err(error) = result {
            let failed = Failed { path: file.path.clone(), error };
            return Err(self.body_failed(RequestBodyError::Write(failed.into())));
        }
        bytes.clear();
        Ok(bytes)
    }

    async fn create_body_file(&mut self) -> Result<TempFile, RequestBodyError> {
        let core = &self.conf().core;
        let (keep, level) = match core.client_body_in_file_only {
            _ if self.body.may_keep_file => (Keep::WhileUsed, Level::Debug),
            BodyInFile::Off => (Keep::Nameless, Level::Warn),
            BodyInFile::On => (Keep::Forever, Level::Notice),
            BodyInFile::Clean => (Keep::WhileUsed, Level::Notice),
        };
        match core.client_body_temp_path.create(&self.event_loop.handle, keep).await {
            Ok(file) => {
                let text = "a client request body is buffered to a temporary file";
                self.log(level, format_args!("{text} {}", file.path.display()));
                Ok(file)
            }
            Err(failed) => Err(self.body_failed(RequestBodyError::Open(failed.into()))),
        }
    }
}

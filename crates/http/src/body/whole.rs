//! Reading the whole body: into memory as far as `client_body_buffer_size` goes, into a file beyond.

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
    /// Reads all of the body, within the limits that the location sets. It stays for later calls.
    pub async fn read_body(&mut self) -> Result<(), RequestBodyError> {
        self.gather_body(true).await
    }

    /// The same for a body that has come already ([`Request::check_body_received`]) and is not to be buffered. It stays in
    /// memory, which it takes anyway: `client_body_in_file_only` and `client_body_buffer_size` are about buffered bodies.
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

    /// Takes what has come of the body, without waiting for more. True once that is all of it: as after [`Request::read_body`],
    /// which reads the rest otherwise.
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

    /// The same where there is more of the body ([`Request::body_readable`]).
    pub async fn gather_more(&mut self) -> Result<bool, RequestBodyError> {
        if let Err(error) = self.more_body().await {
            let mut gathering = self.gathering(true);
            self.keep_part(&mut gathering, &error);
            return Err(error);
        }
        self.gather_now().await
    }

    /// What was gathered before, or nothing yet.
    fn gathering(&mut self, buffered: bool) -> Gathering {
        if let Some(begun) = self.body.gathering.take() {
            return *begun;
        }
        let core = &self.conf().core;
        let file_only = buffered && core.client_body_in_file_only != BodyInFile::Off;
        let in_file = self.body.for_keeps || file_only;
        let room = usize::try_from(core.client_body_buffer_size).unwrap_or(usize::MAX);
        let known = self.body.length.and_then(|n| usize::try_from(n).ok());
        // A body that misses the buffer by a little is not worth a file; over HTTP/2 nginx does not say so.
        let limit = if self.carrier.has_frames() { room } else { room + room / 4 };
        let beside_head = !in_file && self.is_beside_head(known);
        let fits = known.is_some_and(|length| length <= limit && !in_file || beside_head);
        let fits = fits || !buffered && !in_file;
        let bytes = Vec::with_capacity(known.unwrap_or(0).min(room));
        Gathering { bytes, room, fits, in_file, beside_head }
    }

    /// One more piece of the body.
    async fn gather(
        &mut self,
        gathering: &mut Gathering,
        piece: Range<usize>,
    ) -> Result<(), RequestBodyError> {
        gathering.bytes.extend_from_slice(self.buf.get(piece).unwrap_or_default());
        // Once more is read, it is beside the head no more.
        gathering.beside_head &= !self.body_needs_bytes() || self.body.is_read();
        if gathering.bytes.len() > gathering.room && !gathering.fits && !gathering.beside_head {
            gathering.bytes = self.write_body(std::mem::take(&mut gathering.bytes)).await?;
        }
        Ok(())
    }

    /// No more comes of it.
    fn keep_part(&mut self, gathering: &mut Gathering, error: &RequestBodyError) {
        if error.is_break() && self.body.file.is_none() {
            self.body.part = std::mem::take(&mut gathering.bytes);
        }
    }

    /// That was all of it.
    async fn gathered(&mut self, gathering: Gathering) -> Result<(), RequestBodyError> {
        if self.body.file.is_some() || (gathering.in_file && self.has_body()) {
            self.write_body(gathering.bytes).await?;
        } else if !gathering.bytes.is_empty() {
            self.body.memory.push(Bytes::from(gathering.bytes));
        }
        self.body.whole = true;
        Ok(())
    }

    /// Another body takes the place of the one that was read. One of more than `room` bytes is kept in a file.
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

    /// The same with a file that is there already; `clean` removes its name when the request has ended.
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

    /// What came of the body with the head has room in the head's buffer, and all of it, as far as its length is
    /// known: nginx leaves it there, however small the body's own buffer is.
    fn is_beside_head(&self, known: Option<usize>) -> bool {
        let (head, limits) = (self.parser.head().end as usize, &self.server.conf.head_limits);
        let buffer = if head < limits.first { limits.first } else { limits.line };
        let came = self.buf.len().saturating_sub(head);
        let needed = known.unwrap_or(came);
        !self.carrier.has_frames() && came > 0 && head.saturating_add(needed) <= buffer
    }

    /// The request has a body, even if it is empty.
    fn has_body(&self) -> bool {
        self.body.chunked || self.body.length.is_some()
    }

    /// Appends to the body's file; the buffer comes back empty.
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
            _ if self.body.for_keeps => (Keep::WhileUsed, Level::Debug),
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

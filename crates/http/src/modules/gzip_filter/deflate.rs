//! The streaming compressor of gzip, which is reused for later responses.

use std::cell::RefCell;
use std::io;

use flate2::{Compress, Compression, FlushCompress, Status};

use crate::modules::encoding::Encoder;

/// The free output space for each call of the compressor.
const ROOM: usize = 16 * 1024;

/// The most idle compressors of a loop. Each takes about 270 KiB.
const MOST_IDLE: usize = 8;

thread_local! {
    /// Compressors of responses that have ended. To make a new one costs a third of the time to
    /// compress 100 KiB, since its tables are fresh memory.
    static IDLE: RefCell<Vec<Compressor>> = const { RefCell::new(Vec::new()) };
}

/// Compresses one response.
pub struct Deflate {
    /// `None` only while this is dropped.
    compressor: Option<Compressor>,
    out: Vec<u8>,
}

struct Compressor {
    level: u32,
    window_bits: u8,
    compress: Compress,
}

impl Compressor {
    /// A compressor in its initial state.
    fn take(level: u32, window_bits: u8) -> Compressor {
        let idle = IDLE.with_borrow_mut(|idle| {
            let fits = |c: &Compressor| (c.level, c.window_bits) == (level, window_bits);
            idle.iter().position(fits).map(|at| idle.swap_remove(at))
        });
        if let Some(mut compressor) = idle {
            compressor.compress.reset();
            return compressor;
        }
        let compress = Compress::new_gzip(compression(level), window_bits);
        Compressor { level, window_bits, compress }
    }

    /// Keeps the compressor for a later response. If there are too many, the oldest idle one is
    /// dropped.
    fn keep(self) {
        // Fails if the thread is ending.
        let _ = IDLE.try_with(|idle| {
            let mut idle = idle.borrow_mut();
            if idle.len() == MOST_IDLE {
                idle.remove(0);
            }
            idle.push(self);
        });
    }
}

/// zlib's level 1 corresponds to level 2 of zlib-rs. Level 1 of zlib-rs is faster still, but its
/// output is a fifth longer.
fn compression(level: u32) -> Compression {
    Compression::new(level.max(2))
}

impl Deflate {
    /// A compressor at nginx's level `level`, with this window.
    pub fn new(level: u32, window_bits: u8) -> Deflate {
        Deflate { compressor: Some(Compressor::take(level, window_bits)), out: Vec::new() }
    }

    fn run(&mut self, mut bytes: &[u8], flush: FlushCompress) -> io::Result<()> {
        let Some(Compressor { compress, .. }) = &mut self.compressor else { return Ok(()) };
        loop {
            self.out.reserve(ROOM);
            let (read, written) = (compress.total_in(), self.out.len());
            let status = compress.compress_vec(bytes, &mut self.out, flush);
            let status = status.map_err(io::Error::other)?;
            let read = (compress.total_in() - read) as usize;
            bytes = bytes.get(read..).unwrap_or_default();
            let full = self.out.len() == self.out.capacity();
            let moved = read > 0 || self.out.len() > written;
            if status == Status::StreamEnd || !moved || (bytes.is_empty() && !full) {
                return Ok(());
            }
        }
    }
}

impl Drop for Deflate {
    fn drop(&mut self) {
        if let Some(compressor) = self.compressor.take() {
            compressor.keep();
        }
    }
}

impl Encoder for Deflate {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.run(bytes, FlushCompress::None)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.run(&[], FlushCompress::Sync)
    }

    fn finish(&mut self) -> io::Result<()> {
        self.run(&[], FlushCompress::Finish)
    }

    fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.out)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use proptest::prelude::*;

    use super::*;
    use crate::modules::encoding::samples::{After, coded, pieces};

    /// A text of words, with some repetition.
    fn text() -> Vec<u8> {
        let word =
            |n: u64| format!("{:x} ", n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (40 + n % 20));
        (0..20_000).flat_map(|n| word(n % 3000).into_bytes()).take(100 * 1024).collect()
    }

    fn made(level: u32, text: &[u8]) -> Vec<u8> {
        coded(Deflate::new(level, 15), vec![(text.to_vec(), After::Nothing)]).0
    }

    #[test]
    fn a_reused_compressor_gives_the_same_output() {
        let text = text();
        let first = made(3, &text);
        let mut left_early = Deflate::new(3, 15);
        left_early.write(&text[..50_000]).unwrap();
        drop(left_early);
        assert_eq!(IDLE.with_borrow(Vec::len), 1);
        assert_eq!(made(3, &text), first);
        for level in [1, 2, 4, 5, 6, 7, 8, 9, 1, 2] {
            made(level, &text);
        }
        assert_eq!(IDLE.with_borrow(Vec::len), MOST_IDLE);
    }

    #[test]
    fn higher_levels_make_shorter_answers() {
        let text = text();
        let sizes = [1, 3, 5, 6].map(|level| made(level, &text).len());
        assert!(sizes.is_sorted_by(|a, b| a >= b) && sizes[0] > sizes[3], "{sizes:?}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn what_is_compressed_comes_out_again(
            pieces in pieces(20_000),
            level in 1u32..10,
            bits in 9u8..16,
        ) {
            let (coded, plain) = coded(Deflate::new(level, bits), pieces);
            let mut back = Vec::new();
            flate2::read::MultiGzDecoder::new(coded.as_slice()).read_to_end(&mut back).unwrap();
            prop_assert_eq!(back, plain);
        }
    }
}

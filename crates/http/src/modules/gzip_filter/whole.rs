//! Compresses whole responses in one call, which is two to three times as fast as piece by piece,
//! and gives a shorter result.

use std::cell::RefCell;
use std::io;

use libdeflater::{CompressionLvl, Compressor};

use super::deflate::Deflate;
use crate::modules::encoding::Encoder;

/// The longest response that is compressed whole. A call blocks the loop for less than two
/// milliseconds; zlib compresses less in that time.
const MOST: usize = 128 * 1024;

/// The shortest response that is compressed whole. This compressor only stores what is shorter than
/// about 50 bytes.
const LEAST: usize = 64;

/// The same as [`MOST`] for the slow levels, from [`LONG`] on.
const MOST_LONG: usize = 64 * 1024;

/// The first slow level.
const LONG: u32 = 7;

/// The most bytes that are collected while it is unknown when more follows. zlib would also hold
/// them back: it collects 16 Ki literals and matches before it writes any output.
const MOST_HELD: usize = 16 * 1024;

/// The most idle compressors of a loop. One takes up to 800 KiB.
const MOST_IDLE: usize = 2;

thread_local! {
    static WORKSPACE: RefCell<Workspace> = const { RefCell::new(Workspace { idle: Vec::new(), output: Vec::new() }) };
}

/// The compressors and the output buffer of a loop.
#[derive(Default)]
struct Workspace {
    /// The compressors with their levels, most recently used first.
    idle: Vec<(u32, Compressor)>,
    /// The output, until its length is known.
    output: Vec<u8>,
}

/// Collects a response and compresses it at its end. If it is too long, or pauses, the rest is
/// compressed piece by piece.
pub struct Whole {
    level: u32,
    window_bits: u8,
    state: GzipState,
}

enum GzipState {
    Gathering(Vec<u8>),
    InPieces(Deflate),
    Ended(Vec<u8>),
}

/// Whether a response with such a head may be compressed whole. With a `gzip_window` other than the
/// default it is compressed piece by piece.
pub fn suits(level: u32, window: u64, length: Option<u64>) -> bool {
    window == 32 * 1024 && length.is_none_or(|length| length <= most(level) as u64)
}

impl Whole {
    /// A compressor at nginx's level `level`. The window is for compression piece by piece.
    pub fn new(level: u32, window_bits: u8, length: Option<u64>) -> Whole {
        let length = length.and_then(|n| usize::try_from(n).ok()).unwrap_or(0);
        let gathered = Vec::with_capacity(length.min(most(level)));
        Whole { level, window_bits, state: GzipState::Gathering(gathered) }
    }

    /// Switches to compression piece by piece.
    fn in_pieces(&mut self) -> io::Result<&mut Deflate> {
        if let GzipState::Gathering(gathered) = &self.state {
            let mut deflate = Deflate::new(self.level, self.window_bits);
            deflate.write(gathered)?;
            self.state = GzipState::InPieces(deflate);
        }
        match &mut self.state {
            GzipState::InPieces(deflate) => Ok(deflate),
            _ => Err(io::Error::other("the answer has ended")),
        }
    }
}

impl Encoder for Whole {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        match &mut self.state {
            GzipState::Gathering(gathered) if gathered.len() + bytes.len() <= most(self.level) => {
                gathered.extend_from_slice(bytes);
                Ok(())
            }
            _ => self.in_pieces()?.write(bytes),
        }
    }

    fn pause(&mut self) -> io::Result<()> {
        match &self.state {
            GzipState::Gathering(gathered) if gathered.len() > MOST_HELD => {
                self.in_pieces().map(drop)
            }
            _ => Ok(()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.in_pieces()?.flush()
    }

    fn finish(&mut self) -> io::Result<()> {
        if let GzipState::Gathering(gathered) = &self.state
            && gathered.len() >= LEAST
        {
            self.state = GzipState::Ended(compress(self.level, gathered)?);
            return Ok(());
        }
        self.in_pieces()?.finish()
    }

    fn take(&mut self) -> Vec<u8> {
        match &mut self.state {
            GzipState::Gathering(_) => Vec::new(),
            GzipState::InPieces(deflate) => deflate.take(),
            GzipState::Ended(out) => std::mem::take(out),
        }
    }
}

fn most(level: u32) -> usize {
    if level < LONG { MOST } else { MOST_LONG }
}

fn compress(level: u32, bytes: &[u8]) -> io::Result<Vec<u8>> {
    WORKSPACE.with_borrow_mut(|Workspace { idle, output }| {
        let compressor = compressor_of(idle, level);
        let most = compressor.gzip_compress_bound(bytes.len());
        if output.len() < most {
            output.resize(most, 0);
        }
        let len = compressor.gzip_compress(bytes, output).map_err(io::Error::other)?;
        Ok(output.get(..len).unwrap_or_default().to_vec())
    })
}

/// The compressor of a level. A new one takes the place of the least recently used one.
fn compressor_of(idle: &mut Vec<(u32, Compressor)>, level: u32) -> &mut Compressor {
    let found = match idle.iter().position(|(of, _)| *of == level) {
        Some(at) => idle.remove(at),
        None => {
            idle.truncate(idle.len().min(MOST_IDLE - 1));
            (level, Compressor::new(own_level(level)))
        }
    };
    idle.insert(0, found);
    &mut idle[0].1
}

/// The libdeflate level whose output is no longer than that of the zlib level.
fn own_level(level: u32) -> CompressionLvl {
    let own = if matches!(level, 5 | 6) { level + 1 } else { level };
    CompressionLvl::new(own as i32).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use proptest::prelude::*;

    use super::*;
    use crate::modules::encoding::samples::{coded, pieces};

    fn gunzip(coded: &[u8]) -> Vec<u8> {
        let mut plain = Vec::new();
        flate2::read::MultiGzDecoder::new(coded).read_to_end(&mut plain).unwrap();
        plain
    }

    fn ended(mut whole: Whole, before: Vec<u8>) -> Vec<u8> {
        whole.finish().unwrap();
        [before, whole.take()].concat()
    }

    #[test]
    fn a_short_response_is_compressed_at_its_end() {
        let mut whole = Whole::new(1, 15, Some(100_000));
        for _ in 0..4 {
            whole.write(&[b'a'; 25_000]).unwrap();
            assert!(whole.take().is_empty());
        }
        assert!(matches!(whole.state, GzipState::Gathering(_)));
        assert_eq!(gunzip(&ended(whole, Vec::new())), [b'a'; 100_000]);
    }

    #[test]
    fn a_longer_answer_than_announced_goes_on_in_pieces() {
        let mut whole = Whole::new(1, 15, Some(10));
        whole.write(&[b'a'; MOST]).unwrap();
        whole.write(b"b").unwrap();
        assert!(matches!(whole.state, GzipState::InPieces(_)));
        let plain = gunzip(&ended(whole, Vec::new()));
        assert_eq!((plain.len(), plain.last()), (MOST + 1, Some(&b'b')));
    }

    #[test]
    fn a_flush_outputs_all_collected_input() {
        let mut whole = Whole::new(6, 15, None);
        whole.write(b"now").unwrap();
        whole.flush().unwrap();
        let first = whole.take();
        let mut plain = [0; 3];
        flate2::read::GzDecoder::new(first.as_slice()).read_exact(&mut plain).unwrap();
        assert_eq!(&plain, b"now");
        whole.write(b" then").unwrap();
        assert_eq!(gunzip(&ended(whole, first)), b"now then");
    }

    #[test]
    fn a_slow_answer_waits_for_no_more_than_zlib_would() {
        let mut whole = Whole::new(1, 15, Some(100_000));
        whole.write(&[b'a'; MOST_HELD]).unwrap();
        whole.pause().unwrap();
        assert!(matches!(whole.state, GzipState::Gathering(_)));
        whole.write(b"b").unwrap();
        whole.pause().unwrap();
        assert!(matches!(whole.state, GzipState::InPieces(_)));
    }

    #[test]
    fn few_compressors_are_kept() {
        for level in [1, 2, 1, 9, 1, 3] {
            compress(level, b"abc").unwrap();
        }
        let levels =
            WORKSPACE.with_borrow(|t| t.idle.iter().map(|(of, _)| *of).collect::<Vec<_>>());
        assert_eq!(levels, [3, 1]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn what_is_compressed_comes_out_again(
            pieces in pieces(60_000),
            level in 1u32..10,
            length in prop::option::of(0u64..200_000),
        ) {
            let (coded, plain) = coded(Whole::new(level, 15, length), pieces);
            prop_assert_eq!(gunzip(&coded), plain);
        }
    }
}

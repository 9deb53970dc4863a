//! Answers in Brotli (RFC 7932). The directives are those of Google's ngx_brotli.

use std::io;

use brotli::CompressorWriter;
use weir_conf::{Directive as Line, Error};

use crate::encoding::{Coding, Compress, Compressor, accepts, encode};
use crate::mime::{Types, types_setting};
use crate::modules::gzip_filter::fits;
use crate::modules::{LocationConf, Module, Settings};
use crate::phases::Step;
use crate::request::Request;
use crate::scope::{Directive, setting};

/// The compressor's own input buffer.
const BUFFER: usize = 4096;

/// Settings.
#[derive(Debug, Clone)]
pub struct Conf {
    on: bool,
    types: Types,
    level: u32,
    window: u64,
    min_length: u64,
    /// Read, and of no effect: weir sizes these buffers itself.
    buffers: (u64, u64),
}

impl Default for Conf {
    fn default() -> Self {
        Conf {
            on: false,
            types: Types::default(),
            level: 6,
            window: 512 * 1024,
            min_length: 20,
            buffers: (32, 4096),
        }
    }
}

impl Settings for Conf {}

const DIRECTIVES: &[Directive] = &[
    setting!(
        "brotli",
        brotli_filter.on,
        Line::flag,
        "Sends answers in Brotli to clients that take it; it is preferred to Zstandard and gzip."
    ),
    types_setting!(
        "brotli_types",
        brotli_filter.types,
        &["text/html"],
        "Types of answers that are compressed."
    ),
    setting!(
        "brotli_comp_level",
        brotli_filter.level,
        |d: &Line| d.number_within(0, Some(11)).map(|n| n as u32),
        "How hard to compress."
    ),
    setting!("brotli_window", brotli_filter.window, window, "How far back the compressor looks."),
    setting!(
        "brotli_min_length",
        brotli_filter.min_length,
        Line::size,
        "Answers that are known to be shorter are left alone."
    ),
    setting!(
        "brotli_buffers",
        brotli_filter.buffers,
        Line::buffers,
        "Accepted: weir sizes these buffers itself."
    ),
];

/// The module.
pub const MODULE: Module =
    Module { name: "http_brotli_filter", directives: DIRECTIVES, init: |_| {} };

fn window(d: &Line) -> Result<u64, Error> {
    let size = d.size().ok().filter(|n| n.is_power_of_two() && (1 << 10..=1 << 24).contains(n));
    size.ok_or_else(|| {
        d.problem("must be 1k, 2k, 4k, 8k, 16k, 32k, 64k, 128k, 256k, 512k, 1m, 2m, 4m, 8m or 16m")
    })
}

/// Whether a location has anything to do here.
pub fn wanted(conf: &LocationConf) -> bool {
    conf.brotli_filter.on
}

const CODING: Coding = Coding { name: b"br", module: "brotli_filter" };

/// Header filter.
pub fn header_filter(r: &mut Request) -> Result<(), Step> {
    let conf = &r.conf().brotli_filter;
    if !fits(r, &conf.types, conf.min_length) {
        return Ok(());
    }
    r.response.varies_by_encoding = true;
    if allowed(r) {
        let bits = window_bits(conf.window, r.response.content_length);
        encode(r, &CODING, Brotli::new(conf.level, bits));
    }
    Ok(())
}

/// Whether the client may have an answer in Brotli.
pub fn allowed(r: &Request) -> bool {
    r.is_main() && accepts(r, "br")
}

fn window_bits(window: u64, length: Option<u64>) -> u32 {
    let needed = length.map_or(64, |length| length.max(1 << 10).next_power_of_two().ilog2());
    window.ilog2().clamp(10, 24).min(needed)
}

type Brotli = Compressor<CompressorWriter<Vec<u8>>>;

impl Brotli {
    fn new(level: u32, window_bits: u32) -> Brotli {
        let writer = CompressorWriter::new(Vec::new(), BUFFER, level, window_bits);
        Compressor::over(writer)
    }
}

impl Compress for CompressorWriter<Vec<u8>> {
    fn out(&mut self) -> &mut Vec<u8> {
        self.get_mut()
    }

    fn end(self) -> io::Result<Vec<u8>> {
        Ok(self.into_inner())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::encoding::Encoder;
    use crate::trial::complaint;

    #[test]
    fn windows_are_powers_of_two() {
        assert_eq!(complaint("brotli_window 1k;"), "");
        assert!(complaint("brotli_window 3k;").contains("must be 1k"));
        assert_eq!(window_bits(512 * 1024, None), 19);
        assert_eq!(window_bits(512 * 1024, Some(20)), 10);
        assert_eq!(window_bits(512 * 1024, Some(5000)), 13);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn what_is_compressed_comes_out_again(
            pieces in prop::collection::vec((prop::collection::vec(0u8..4, 0..9000), any::<bool>()), 0..5),
            level in 0u32..7,
        ) {
            let mut encoder = Brotli::new(level, 16);
            let (mut coded, mut plain) = (Vec::new(), Vec::new());
            for (piece, flush) in pieces {
                encoder.write(&piece).unwrap();
                if flush {
                    encoder.flush().unwrap();
                }
                coded.extend(encoder.take());
                plain.extend(piece);
            }
            encoder.finish().unwrap();
            coded.extend(encoder.take());
            let mut back = Vec::new();
            brotli::BrotliDecompress(&mut coded.as_slice(), &mut back).unwrap();
            prop_assert_eq!(back, plain);
        }
    }
}

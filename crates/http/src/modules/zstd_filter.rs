//! Answers in Zstandard (RFC 8878). The directives are those of the zstd-nginx-module.

use std::io;

use weir_conf::Directive as Line;
use zstd::stream::write::Encoder as Writer;

use crate::encoding::{Coding, Compress, Compressor, accepts, encode};
use crate::mime::{Types, types_setting};
use crate::modules::gzip_filter::fits;
use crate::modules::{LocationConf, Module, Settings};
use crate::phases::Step;
use crate::request::Request;
use crate::scope::{Directive, setting};

/// RFC 9659: no window above 8 MiB in HTTP.
const WINDOW_BITS: u32 = 23;

/// Settings.
#[derive(Debug, Clone)]
pub struct Conf {
    on: bool,
    types: Types,
    level: i32,
    min_length: u64,
    /// Read, and of no effect: weir sizes these buffers itself.
    buffers: (u64, u64),
}

impl Default for Conf {
    fn default() -> Self {
        Conf { on: false, types: Types::default(), level: 1, min_length: 20, buffers: (32, 4096) }
    }
}

impl Settings for Conf {}

const DIRECTIVES: &[Directive] = &[
    setting!(
        "zstd",
        zstd_filter.on,
        Line::flag,
        "Sends answers in Zstandard to clients that take it; it is preferred to gzip."
    ),
    types_setting!(
        "zstd_types",
        zstd_filter.types,
        &["text/html"],
        "Types of answers that are compressed."
    ),
    setting!(
        "zstd_comp_level",
        zstd_filter.level,
        |d: &Line| d.number_within(1, Some(22)).map(|n| n as i32),
        "How hard to compress."
    ),
    setting!(
        "zstd_min_length",
        zstd_filter.min_length,
        Line::size,
        "Answers that are known to be shorter are left alone."
    ),
    setting!(
        "zstd_buffers",
        zstd_filter.buffers,
        Line::buffers,
        "Accepted: weir sizes these buffers itself."
    ),
];

/// The module.
pub const MODULE: Module =
    Module { name: "http_zstd_filter", directives: DIRECTIVES, init: |_| {} };

/// Whether a location has anything to do here.
pub fn wanted(conf: &LocationConf) -> bool {
    conf.zstd_filter.on
}

const CODING: Coding = Coding { name: b"zstd", module: "zstd_filter" };

/// Header filter.
pub fn header_filter(r: &mut Request) -> Result<(), Step> {
    let conf = &r.conf().zstd_filter;
    if !fits(r, &conf.types, conf.min_length) {
        return Ok(());
    }
    r.response.varies_by_encoding = true;
    if allowed(r)
        && let Ok(encoder) = Zstd::new(conf.level, r.response.content_length)
    {
        encode(r, &CODING, encoder);
    }
    Ok(())
}

/// Whether the client may have an answer in Zstandard.
pub fn allowed(r: &Request) -> bool {
    r.is_main() && accepts(r, "zstd")
}

type Zstd = Compressor<Writer<'static, Vec<u8>>>;

impl Zstd {
    fn new(level: i32, length: Option<u64>) -> io::Result<Zstd> {
        let mut writer = Writer::new(Vec::new(), level)?;
        // A filter before this one may change the length, so it is a hint to the compressor alone.
        let small = length.is_some_and(|length| length < 1 << 17);
        writer.window_log(if small { 17 } else { WINDOW_BITS.min(window_of(level)) })?;
        Ok(Compressor::over(writer))
    }
}

/// Low levels do not gain from wide windows, which cost memory for each answer.
fn window_of(level: i32) -> u32 {
    match level {
        ..=3 => 19,
        4..=9 => 21,
        _ => WINDOW_BITS,
    }
}

impl Compress for Writer<'static, Vec<u8>> {
    fn out(&mut self) -> &mut Vec<u8> {
        self.get_mut()
    }

    fn end(self) -> io::Result<Vec<u8>> {
        self.finish()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::encoding::Encoder;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn what_is_compressed_comes_out_again(
            pieces in prop::collection::vec((prop::collection::vec(0u8..4, 0..9000), any::<bool>()), 0..5),
            level in 1i32..10,
            length in prop::option::of(0u64..50_000),
        ) {
            let mut encoder = Zstd::new(level, length).unwrap();
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
            prop_assert_eq!(zstd::decode_all(coded.as_slice()).unwrap(), plain);
        }
    }
}

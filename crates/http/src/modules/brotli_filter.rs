//! Compresses responses with Brotli (RFC 7932). The directives are those of Google's ngx_brotli.

use std::io;

use brotli::CompressorWriter;
use weir_conf::{Directive as Line, Error};

use crate::config::module::Module;
use crate::config::scope::{Directive, setting};
use crate::config::table::together;
use crate::modules::encoding::{
    Coding, Common, Compress, Compressor, accepts, coding_directives, encode, power_of_two,
};
use crate::phases::Step;
use crate::request::Request;
use crate::site::settings::LocationConf;
use crate::site::settings::{Key, Settings};

/// The size of the compressor's input buffer.
const BUFFER: usize = 4096;

/// Settings.
#[derive(Debug, Clone)]
pub struct Conf {
    common: Common,
    window: u64,
}

impl Default for Conf {
    fn default() -> Self {
        Conf { common: Common::at_level(6), window: 512 * 1024 }
    }
}

impl Settings for Conf {}

const CODING_DIRECTIVES: &[Directive] = coding_directives!(
    CONF,
    "brotli",
    0,
    11,
    "Compresses responses for clients that accept Brotli, which is preferred to Zstandard and gzip."
);

const OWN: &[Directive] =
    &[setting!("brotli_window", CONF.window, window, "The size of the compression window.")];

const DIRECTIVES: [Directive; CODING_DIRECTIVES.len() + OWN.len()] =
    together(CODING_DIRECTIVES, OWN);

/// The module's settings.
pub static CONF: Key<Conf> = Key::new();

/// The module.
pub const MODULE: Module =
    Module { name: "http_brotli_filter", directives: &DIRECTIVES, ..Module::NEW };

fn window(d: &Line) -> Result<u64, Error> {
    let problem = "must be 1k, 2k, 4k, 8k, 16k, 32k, 64k, 128k, 256k, 512k, 1m, 2m, 4m, 8m or 16m";
    power_of_two(d, 1 << 10..=1 << 24, problem)
}

/// Whether a location has anything to do here.
pub fn wanted(conf: &LocationConf) -> bool {
    CONF.of(conf).common.on
}

const CODING: Coding = Coding { name: b"br", module: "brotli_filter" };

/// Header filter.
pub fn header_filter(r: &mut Request) -> Result<(), Step> {
    let conf = CONF.of(r.conf());
    if conf.common.fits(r) && allowed(r) {
        let bits = window_bits(conf.window, r.response.content_length, conf.common.level);
        encode(r, &CODING, Brotli::new(conf.common.level, bits));
    }
    Ok(())
}

/// Whether the request may be answered in Brotli.
pub fn allowed(r: &Request) -> bool {
    r.is_main() && accepts(r, "br")
}

fn window_bits(window: u64, length: Option<u64>, level: u32) -> u32 {
    let needed = length.map_or(64, |length| length.max(1 << 10).next_power_of_two().ilog2());
    let bits = window.ilog2().clamp(10, 24).min(needed);
    // At these levels the crate has no tables for smaller windows. It would allocate 32 MB for each
    // answer, even a short one.
    if (5..=8).contains(&level) { bits.max(17) } else { bits }
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
    use crate::modules::encoding::samples::{coded, pieces};
    use crate::trial::complaint;

    #[test]
    fn windows_are_powers_of_two() {
        assert_eq!(complaint("brotli_window 1k;"), "");
        assert!(complaint("brotli_window 3k;").contains("must be 1k"));
        assert_eq!(window_bits(512 * 1024, None, 6), 19);
        assert_eq!(window_bits(512 * 1024, Some(20), 4), 10);
        assert_eq!(window_bits(512 * 1024, Some(5000), 4), 13);
        assert_eq!(window_bits(512 * 1024, Some(20), 6), 17);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn what_is_compressed_comes_out_again(
            pieces in pieces(9000),
            level in 0u32..7,
        ) {
            let (coded, plain) = coded(Brotli::new(level, 16), pieces);
            let mut back = Vec::new();
            brotli::BrotliDecompress(&mut coded.as_slice(), &mut back).unwrap();
            prop_assert_eq!(back, plain);
        }
    }
}

//! Compresses responses with Zstandard (RFC 8878). The directives are those of the
//! zstd-nginx-module.

use std::io;

use zstd::stream::write::Encoder as Writer;

use crate::config::module::Module;
use crate::config::scope::Directive;
use crate::modules::encoding::{
    Coding, Common, Compress, Compressor, accepts, coding_directives, encode,
};
use crate::phases::Step;
use crate::request::Request;
use crate::site::settings::LocationConf;
use crate::site::settings::{Key, Settings};

/// RFC 9659: HTTP clients need not support windows above 8 MiB.
const WINDOW_BITS: u32 = 23;

/// Settings.
#[derive(Debug, Clone)]
pub struct Conf {
    common: Common,
}

impl Default for Conf {
    fn default() -> Self {
        Conf { common: Common::at_level(1) }
    }
}

impl Settings for Conf {}

const DIRECTIVES: &[Directive] = coding_directives!(
    CONF,
    "zstd",
    1,
    22,
    "Compresses responses for clients that accept Zstandard, which is preferred to gzip."
);

/// The module's settings.
pub static CONF: Key<Conf> = Key::new();

/// The module.
pub const MODULE: Module =
    Module { name: "http_zstd_filter", directives: DIRECTIVES, ..Module::NEW };

/// Whether a location has anything to do here.
pub fn wanted(conf: &LocationConf) -> bool {
    CONF.of(conf).common.on
}

const CODING: Coding = Coding { name: b"zstd", module: "zstd_filter" };

/// Header filter.
pub fn header_filter(r: &mut Request) -> Result<(), Step> {
    let conf = CONF.of(r.conf());
    if conf.common.fits(r)
        && allowed(r)
        && let Ok(encoder) = Zstd::new(conf.common.level as i32, r.response.content_length)
    {
        encode(r, &CODING, encoder);
    }
    Ok(())
}

/// Whether the request may be answered with Zstandard.
pub fn allowed(r: &Request) -> bool {
    r.is_main() && accepts(r, "zstd")
}

type Zstd = Compressor<Writer<'static, Vec<u8>>>;

impl Zstd {
    fn new(level: i32, length: Option<u64>) -> io::Result<Zstd> {
        let mut writer = Writer::new(Vec::new(), level)?;
        // Only a hint, since an earlier filter may change the length.
        let small = length.is_some_and(|length| length < 1 << 17);
        writer.window_log(if small { 17 } else { WINDOW_BITS.min(window_of(level)) })?;
        Ok(Compressor::over(writer))
    }
}

/// Low levels gain nothing from large windows, which cost memory for each response.
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
    use crate::modules::encoding::samples::{coded, pieces};

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn what_is_compressed_comes_out_again(
            pieces in pieces(9000),
            level in 1i32..10,
            length in prop::option::of(0u64..50_000),
        ) {
            let (coded, plain) = coded(Zstd::new(level, length).unwrap(), pieces);
            prop_assert_eq!(zstd::decode_all(coded.as_slice()).unwrap(), plain);
        }
    }
}

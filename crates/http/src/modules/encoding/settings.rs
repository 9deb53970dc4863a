//! The directives that all content codings have: `gzip`, `gzip_types`, `brotli_types` and alike.

use std::ops::RangeInclusive;

use weir_conf::{Directive, Error};

use crate::config::types::Types;
use crate::request::Request;

/// The settings that all content codings have.
#[derive(Debug, Clone)]
pub struct Common {
    /// Whether responses are encoded.
    pub on: bool,
    /// `..._types`
    pub types: Types,
    /// `..._comp_level`
    pub level: u32,
    /// `..._min_length`
    pub min_length: u64,
    /// `..._buffers`. No effect: weir's buffers grow and shrink with the response.
    pub buffers: (u64, u64),
}

impl Common {
    /// The defaults, with this level. Off.
    pub fn at_level(level: u32) -> Common {
        Common { on: false, types: Types::default(), level, min_length: 20, buffers: (32, 4096) }
    }

    /// Whether the response should be encoded for clients that accept the coding. If so, the
    /// response also varies by `Accept-Encoding`.
    pub fn fits(&self, r: &mut Request) -> bool {
        let response = &mut r.response;
        let fits = matches!(response.status, 200 | 403 | 404)
            && !response.is_coded()
            && response.content_length.is_none_or(|length| length >= self.min_length)
            && !response.header_only
            && self.types.matches(&response.content_type);
        response.varies_by_encoding |= fits;
        fits
    }
}

/// Reads a size that must be a power of two within bounds. `problem` is the error text.
pub fn power_of_two(
    d: &Directive,
    bounds: RangeInclusive<u64>,
    problem: &str,
) -> Result<u64, Error> {
    let size = d.size().ok().filter(|n| n.is_power_of_two() && bounds.contains(n));
    size.ok_or_else(|| d.problem(problem))
}

/// The directives that set a coding's [`Common`]. The module's settings must have a field `common`.
/// The arguments are the key of the settings, the directives' prefix, the lowest and highest level,
/// and the help of the directive that turns the coding on.
macro_rules! coding_directives {
    ($key:ident, $name:literal, $lowest:literal, $highest:literal, $help:literal) => {{
        use weir_conf::Directive as Line;

        use $crate::config::scope::Scope;
        use $crate::config::table::table;
        use $crate::modules::encoding::Common;

        fn settings<'s>(s: &'s mut Scope<'_, '_>) -> &'s mut Common {
            &mut $key.change(&mut s.location).common
        }
        table! { $name, settings:
            "": value(on, Line::flag), $help;
            "_types": line(|s, d| {
                let mut types = settings(s).types.clone();
                types.read(s, d);
                settings(s).types = types;
                Ok(())
            }), "Content types of responses that are compressed.";
            "_comp_level": value(level, |d| {
                d.number_within($lowest, Some($highest)).map(|n| n as u32)
            }), "The compression level.";
            "_min_length": value(min_length, Line::size),
                "The minimum length of responses that are compressed, if the length is known.";
            "_buffers": value(buffers, Line::buffers),
                "Accepted: weir sizes these buffers itself.";
        }
    }};
}
pub(crate) use coding_directives;

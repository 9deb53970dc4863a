//! What the directives of each coding say alike: `gzip`, `gzip_types`, `brotli_types` ...

use std::ops::RangeInclusive;

use weir_conf::{Directive, Error};

use crate::config::types::Types;
use crate::request::Request;

/// Settings that each coding has.
#[derive(Debug, Clone)]
pub struct Common {
    /// Whether answers are coded.
    pub on: bool,
    /// `..._types`
    pub types: Types,
    /// `..._comp_level`
    pub level: u32,
    /// `..._min_length`
    pub min_length: u64,
    /// `..._buffers`, of no effect: weir's buffers grow and shrink with the answer.
    pub buffers: (u64, u64),
}

impl Common {
    /// Off, with this level where none is given.
    pub fn at_level(level: u32) -> Common {
        Common { on: false, types: Types::default(), level, min_length: 20, buffers: (32, 4096) }
    }

    /// Whether an answer is worth coding, for any client. If it is, it varies by what its client
    /// takes.
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

/// A size that is a power of two within bounds; `problem` names those.
pub fn power_of_two(
    d: &Directive,
    bounds: RangeInclusive<u64>,
    problem: &str,
) -> Result<u64, Error> {
    let size = d.size().ok().filter(|n| n.is_power_of_two() && bounds.contains(n));
    size.ok_or_else(|| d.problem(problem))
}

/// The directives that set a coding's [`Common`]: `coding_directives!(gzip_filter, "gzip", 1, 9,
/// "...")` for a module with settings that have a field `common`, levels from 1 to 9, and what the
/// directive of its name is for.
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
            }), "Types of answers that are compressed.";
            "_comp_level": value(level, |d| {
                d.number_within($lowest, Some($highest)).map(|n| n as u32)
            }), "How hard to compress.";
            "_min_length": value(min_length, Line::size),
                "Answers that are known to be shorter are left alone.";
            "_buffers": value(buffers, Line::buffers),
                "Accepted: weir sizes these buffers itself.";
        }
    }};
}
pub(crate) use coding_directives;

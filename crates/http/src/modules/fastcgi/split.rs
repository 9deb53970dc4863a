//! `$fastcgi_script_name` and `$fastcgi_path_info`: the two parts of a request's path.

use pcre2::bytes::Regex as Pcre;
use weir_conf::{Directive, Error};
use weir_log::Level;

use crate::config::Setup;
use crate::config::scope::Scope;
use crate::modules::fastcgi::CONF;
use crate::regex;
use crate::request::Request;

/// `fastcgi_split_path_info`: the script's name and the path info, as captures of a pattern.
#[derive(Debug)]
pub struct Split {
    pcre: Pcre,
    text: String,
}

impl Split {
    /// Reads the pattern.
    pub fn read(_: &mut Scope<'_, '_>, d: &Directive) -> Result<Option<Split>, Error> {
        let Some(word) = d.args.first() else { return Ok(None) };
        let (pcre, text) =
            regex::compile(&word.bytes, false).map_err(|error| d.error_at(word, error))?;
        if pcre.captures_len() != 3 {
            let text = format!("pattern \"{}\" must have 2 captures", word.lossy());
            return Err(d.error_at(word, text));
        }
        Ok(Some(Split { pcre, text }))
    }
}

/// Defines the variables.
pub fn define(setup: &mut Setup<'_>) {
    setup.variables.define("fastcgi_script_name", |r, out| {
        let Some((script, _)) = split(r) else { return false };
        out.extend_from_slice(script);
        if script.ends_with(b"/") {
            out.extend_from_slice(&CONF.of(r.conf()).index);
        }
        true
    });
    setup.variables.define("fastcgi_path_info", |r, out| {
        let Some((_, info)) = split(r) else { return false };
        out.extend_from_slice(info);
        true
    });
}

/// The script's name and the rest.
fn split(r: &Request) -> Option<(&[u8], &[u8])> {
    let path = r.path.as_slice();
    let Some(split) = &CONF.of(r.conf()).split else { return Some((path, b"")) };
    match split.pcre.captures(path) {
        Ok(None) => Some((path, b"")),
        Ok(Some(found)) => {
            let group = |n| found.get(n).map_or(b"".as_slice(), |group| group.as_bytes());
            Some((group(1), group(2)))
        }
        Err(error) => {
            let path = weir_log::Bytes(path);
            let text = &split.text;
            r.log(
                Level::Alert,
                format_args!("pcre2_match() failed: {error} on \"{path}\" using \"{text}\""),
            );
            None
        }
    }
}

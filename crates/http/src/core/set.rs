//! Directives of `core` with complex arguments.

use std::time::Duration;

use weir_conf::{Directive as Line, Error, Word, values};
use weir_engine::Touches;

use crate::config::scope::Scope;
use crate::files::aio::Aio;
use crate::files::cache::FileCache;
use crate::site::core::{NoKeepalive, Root, StandsFor, Tokens};
use crate::site::location::Kind;
use weir_values::Template;

/// Accepts directives without effect. The tables of `conf` have checked their values.
pub fn accept(_: &mut Scope<'_, '_>, _: &Line) -> Result<(), Error> {
    Ok(())
}

/// `root`, `alias`
pub fn root(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    let Some(word) = d.args.first() else { return Ok(()) };
    let alias = d.name.is("alias");
    let set = &s.location.core.root;
    if set.set {
        let other = if set.is_alias() { "alias" } else { "root" };
        return Err(match set.is_alias() == alias {
            true => d.problem("is duplicate"),
            false => {
                d.problem(&format!("is duplicate, \"{other}\" directive was specified earlier"))
            }
        });
    }
    if alias && matches!(s.place.kind, Kind::Named) {
        return Err(d.error("the \"alias\" directive cannot be used inside the named location"));
    }
    for name in ["document_root", "realpath_root"] {
        let text = word.lossy();
        if text.contains(&format!("${name}")) || text.contains(&format!("${{{name}}}")) {
            return Err(d.error(format!(
                "the ${name} variable cannot be used in the \"{}\" directive",
                d.name.lossy()
            )));
        }
    }
    let mut text = word.bytes.clone();
    if !alias && text.ends_with(b"/") {
        text.pop();
    }
    if !text.starts_with(b"$") {
        text = s.setup.full_name(&text);
    }
    let value = Template::new(&mut s.setup.variables, &text).map_err(|e| d.error_at(word, e))?;
    let stands_for = match &s.place.kind {
        _ if !alias => StandsFor::Nothing,
        Kind::Regex(_) => StandsFor::Match,
        _ => StandsFor::Prefix(s.place.name.len()),
    };
    let name = String::from_utf8_lossy(&s.place.name);
    if let Kind::Prefix { .. } = s.place.kind
        && alias
        && text.ends_with(b"/")
        && !name.ends_with('/')
    {
        s.setup.warnings.push(d.warning(format!(
            "\"alias\" ends with \"/\" and location \"{name}\" does not: requests for \"{name}..\" will be refused"
        )));
    }
    let root = Root { value, stands_for, set: true };
    Scope::change(&mut s.location.core).root = root;
    Ok(())
}

/// `internal`
pub fn internal(s: &mut Scope<'_, '_>, _: &Line) -> Result<(), Error> {
    Scope::change(&mut s.location.core).internal = true;
    Ok(())
}

/// `default_type`
pub fn default_type(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    let Some(word) = d.arg(0) else { return Ok(()) };
    let text = s.setup.line_text(d, word, &word.bytes).into_owned();
    Scope::change(&mut s.location.core).default_type = text;
    Ok(())
}

/// `keepalive_timeout`
pub fn keepalive_timeout(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    let invalid = || d.problem("invalid value");
    let timeout = d.arg(0).and_then(|word| values::duration(&word.bytes)).ok_or_else(invalid)?;
    let header = match d.arg(1) {
        Some(word) => Some(values::sec(&word.bytes).ok_or_else(invalid)?),
        None => None,
    };
    let conf = Scope::change(&mut s.location.core);
    conf.keepalive_timeout = timeout;
    // Without a second value, the header's value is inherited.
    if let Some(seconds) = header {
        conf.keepalive_header = Some(seconds).filter(|seconds| *seconds > 0);
    }
    Ok(())
}

/// `keepalive_disable`
pub fn keepalive_disable(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    let first = s.first(d);
    let disable = &mut Scope::change(&mut s.location.core).keepalive_disable;
    if first {
        *disable = NoKeepalive { msie6: false, safari: false };
    }
    for word in &d.args {
        match word.bytes.to_ascii_lowercase().as_slice() {
            b"msie6" => disable.msie6 = true,
            b"safari" => disable.safari = true,
            _ => {}
        }
    }
    Ok(())
}

/// `server_tokens`: weir has no build name, so `build` shows what `on` shows.
pub fn server_tokens(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    let version = d.choice(&[("off", false), ("on", true), ("build", true)])?;
    Scope::change(&mut s.location.core).server_tokens = Tokens::new(version);
    Ok(())
}

/// `max_ranges`
pub fn max_ranges(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    Scope::change(&mut s.location.core).max_ranges = Some(d.number()?);
    Ok(())
}

/// `limit_rate`, `limit_rate_after`
pub fn limit_rate(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    let Some(word) = d.arg(0) else { return Ok(()) };
    let value = Template::new(&mut s.setup.variables, &word.bytes);
    let value = value.map_err(|text| d.error_at(word, text))?;
    if value.constant().is_some_and(|text| values::size(text).is_none()) {
        return Err(d.problem("invalid value"));
    }
    let conf = Scope::change(&mut s.location.core);
    match d.name.is("limit_rate") {
        true => conf.limit_rate = Some(value),
        false => conf.limit_rate_after = Some(value),
    }
    Ok(())
}

/// `error_log`
pub fn error_log(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    let first = s.first(d);
    s.setup.forbid_reuse();
    let log = s.setup.inputs.error_log(d, first, &s.location.core.error_log)?;
    Scope::change(&mut s.location.core).error_log = log;
    Ok(())
}

/// `client_body_temp_path`
pub fn client_body_temp_path(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    let path = s.setup.read_temp_path(d, s.context)?;
    Scope::change(&mut s.location.core).client_body_temp_path = path;
    Ok(())
}

/// `early_hints`
pub fn early_hints(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    let mut list = match s.first(d) {
        true => Vec::new(),
        false => s.location.core.early_hints.clone(),
    };
    for word in &d.args {
        let value = Template::new(&mut s.setup.variables, &word.bytes);
        list.push(value.map_err(|text| d.error_at(word, text))?);
    }
    Scope::change(&mut s.location.core).early_hints = list;
    Ok(())
}

/// `aio on | off | threads[=POOL]`. For experiments also `reads | opens`.
pub fn aio(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    let Some(word) = d.arg(0) else { return Ok(()) };
    let aio = match word.bytes.as_slice() {
        b"on" | b"threads" => Aio::Default,
        b"off" => Aio::Off,
        b"reads" => Aio::Partly(Touches::Content),
        b"opens" => Aio::Partly(Touches::Name),
        other => match other.strip_prefix(b"threads=") {
            Some(name) => Aio::Threads(pool(s, d, word, name)?),
            None => return Err(d.problem("invalid value")),
        },
    };
    Scope::change(&mut s.location.core).aio = aio;
    Ok(())
}

/// The name of a pool. Without variables, it must be a known one.
fn pool(s: &mut Scope<'_, '_>, d: &Line, word: &Word, name: &[u8]) -> Result<Template, Error> {
    let name = Template::new(&mut s.setup.variables, name).map_err(|e| d.error_at(word, e))?;
    if let Some(name) = name.constant() {
        let known = |pool: &&str| pool.as_bytes() == name;
        if name != b"default" && !s.setup.inputs.pools.iter().any(known) {
            let name = String::from_utf8_lossy(name);
            return Err(d.error(format!("unknown thread pool \"{name}\"")));
        }
    }
    Ok(name)
}

/// `directio SIZE | off`
pub fn directio(_: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    match d.arg(0) {
        Some(word) if word.is("off") || values::offset(&word.bytes).is_some() => Ok(()),
        _ => Err(d.problem("invalid value")),
    }
}

/// `send_lowat`: nginx does not support it on Linux either, and warns as well.
pub fn send_lowat(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    s.setup.warnings.push(d.warning("\"send_lowat\" is not supported, ignored"));
    Ok(())
}

/// `open_file_cache off | max=N [inactive=TIME]`
pub fn open_file_cache(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    let (mut max, mut inactive, mut off) = (None, Duration::from_secs(60), false);
    for word in &d.args {
        let text = word.bytes.as_slice();
        let bad = || {
            let text = format!("invalid \"open_file_cache\" parameter \"{}\"", word.lossy());
            d.error_at(word, text)
        };
        if let Some(n) = text.strip_prefix(b"max=") {
            max = Some(values::number(n).filter(|n| *n > 0).ok_or_else(bad)?);
        } else if let Some(time) = text.strip_prefix(b"inactive=") {
            inactive = Duration::from_secs(values::sec(time).ok_or_else(bad)?);
        } else if text == b"off" {
            off = true;
        } else {
            return Err(bad());
        }
    }
    let cache = match (off, max) {
        (true, _) => None,
        (false, Some(max)) => Some(FileCache { id: s.setup.next_file_cache(), max, inactive }),
        (false, None) => {
            return Err(d.error("\"open_file_cache\" must have the \"max\" parameter"));
        }
    };
    Scope::change(&mut s.location.core).open_files.cache = cache;
    Ok(())
}

/// `open_file_cache_valid`
pub fn open_file_cache_valid(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    let valid = Duration::from_secs(d.sec()?);
    Scope::change(&mut s.location.core).open_files.valid = valid;
    Ok(())
}

/// `open_file_cache_min_uses`
pub fn open_file_cache_min_uses(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    Scope::change(&mut s.location.core).open_files.min_uses = d.number()?;
    Ok(())
}

/// `open_file_cache_errors`
pub fn open_file_cache_errors(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    Scope::change(&mut s.location.core).open_files.errors = d.flag()?;
    Ok(())
}

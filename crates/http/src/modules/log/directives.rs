//! The directives' parameters.

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use weir_conf::{Context, Directive, Error, Word, values};
use weir_log::{Cause, Syslog};

use super::file::{Buffer, Target};
use super::format::{COMBINED, Escape, Format, JSON};
use super::path::Cache;
use super::{AccessLog, Logs, Place};
use crate::config::scope::Scope;
use weir_values::Template;

/// What `gzip` without a size gathers.
const GZIP_BUFFER: usize = 64 * 1024;

/// `log_format name [escape=default|json|none] string ...`
pub fn log_format(s: &mut Scope<'_, '_>, d: &Directive) -> Result<(), Error> {
    let Some((name, mut words)) = d.args.split_first() else { return Ok(()) };
    let formats = &s.location.log.formats;
    if name.is("combined") || formats.iter().any(|f| f.name == name.bytes) {
        let text = format!("duplicate \"log_format\" name \"{}\"", name.lossy());
        return Err(d.error_at(name, text));
    }
    let mut escape = Escape::Default;
    if let Some((first, rest)) = words.split_first()
        && let Some(kind) = first.bytes.strip_prefix(b"escape=")
    {
        escape = match kind {
            b"default" => Escape::Default,
            b"json" => Escape::Json,
            b"none" => Escape::None,
            _ => {
                let kind = String::from_utf8_lossy(kind);
                let text = format!("unknown log format escaping \"{kind}\"");
                return Err(d.error_at(first, text));
            }
        };
        words = rest;
    }
    let texts = words.iter().map(|w| w.bytes.as_slice());
    let format = Format::new(&mut s.setup.variables, &name.bytes, escape, texts);
    let format = format.map_err(|text| d.error(text))?;
    Arc::make_mut(&mut Scope::change(&mut s.location.log).formats).push(Arc::new(format));
    Ok(())
}

/// `access_log off`, `access_log path [format [buffer=size] [gzip[=level]] [flush=time] [if=condition]]`
pub fn access_log(s: &mut Scope<'_, '_>, d: &Directive) -> Result<(), Error> {
    let first = s.first(d);
    let Some(path) = d.arg(0) else { return Ok(()) };
    if path.is("off") {
        if let Some(extra) = d.arg(1) {
            return Err(d.invalid("parameter", extra));
        }
        Scope::change(&mut s.location.log).logs = Logs::Off;
        return Ok(());
    }
    let place = place(s, d, path)?;
    let format = match d.arg(1) {
        Some(word) => named_format(s, &word.bytes)
            .ok_or_else(|| d.error_at(word, format!("unknown log format \"{}\"", word.lossy())))?,
        None => combined(s)?,
    };
    let (condition, buffer) = parameters(s, d)?;
    if let Some(buffer) = buffer {
        gather(s, d, path, &place, buffer)?;
    }
    let log = AccessLog { place, format, condition };
    let logs = &mut Scope::change(&mut s.location.log).logs;
    match logs {
        Logs::To(list) if !first => Arc::make_mut(list).push(log),
        Logs::Off if !first => {}
        _ => *logs = Logs::To(Arc::new(vec![log])),
    }
    Ok(())
}

/// A server for which nothing was said logs to the default file.
pub fn default_log(s: &mut Scope<'_, '_>) -> Result<(), Error> {
    if !s.context.meets(Context::SERVER) || !matches!(s.location.log.logs, Logs::Unset) {
        return Ok(());
    }
    let path = s.setup.inputs.access_log.to_owned();
    let target = open(s, path).map_err(Error::emerg)?;
    let log = AccessLog { place: Place::File(target), format: combined(s)?, condition: None };
    Scope::change(&mut s.location.log).logs = Logs::To(Arc::new(vec![log]));
    Ok(())
}

fn place(s: &mut Scope<'_, '_>, d: &Directive, word: &Word) -> Result<Place, Error> {
    if let Some(parameters) = word.bytes.strip_prefix(b"syslog:") {
        let parameters = String::from_utf8_lossy(parameters);
        let server = Syslog::parse(&parameters).map_err(|text| d.error_at(word, text))?;
        return Ok(Place::Syslog(Arc::new(server)));
    }
    let path = s.setup.path(&word.bytes);
    if !word.bytes.contains(&b'$') {
        return open(s, path).map(Place::File).map_err(Error::emerg);
    }
    use std::os::unix::ffi::OsStrExt;
    let name = s.setup.template_of(d, word, path.as_os_str().as_bytes())?;
    s.setup.log_targets.push(Target { path, file: None, buffer: None });
    Ok(Place::Named(s.setup.log_targets.len() - 1, name))
}

/// The index of the target with this path.
fn open(s: &mut Scope<'_, '_>, path: std::path::PathBuf) -> Result<usize, String> {
    let targets = &mut s.setup.log_targets;
    if let Some(at) = targets.iter().position(|t| t.path == path && t.file.is_some()) {
        return Ok(at);
    }
    let file = s.setup.inputs.logs.open(&path).map_err(|error| {
        let error = match error.kind() {
            ErrorKind::InvalidInput => std::io::Error::from_raw_os_error(2),
            _ => error,
        };
        format!("open() \"{}\" failed {}", path.display(), Cause(&error))
    })?;
    targets.push(Target { path, file: Some(file), buffer: None });
    Ok(targets.len() - 1)
}

/// The format of this name; `format=json` has one ready.
fn named_format(s: &mut Scope<'_, '_>, name: &[u8]) -> Option<Arc<Format>> {
    let bare = name.strip_prefix(b"format=");
    let name = bare.unwrap_or(name);
    let formats = &s.location.log.formats;
    if let Some(found) = formats.iter().find(|f| f.name.eq_ignore_ascii_case(name)) {
        return Some(found.clone());
    }
    let (text, escape) = match name.to_ascii_lowercase().as_slice() {
        b"combined" => (COMBINED, Escape::Default),
        b"json" if bare.is_some() => (JSON, Escape::Json),
        _ => return None,
    };
    let words = std::iter::once(text.as_bytes());
    Format::new(&mut s.setup.variables, name, escape, words).ok().map(Arc::new)
}

fn combined(s: &mut Scope<'_, '_>) -> Result<Arc<Format>, Error> {
    named_format(s, b"combined").ok_or_else(|| Error::emerg("unknown log format \"combined\""))
}

fn parameters(
    s: &mut Scope<'_, '_>,
    d: &Directive,
) -> Result<(Option<Template>, Option<Buffer>), Error> {
    let (mut condition, mut size, mut flush, mut gzip) = (None, None, None, None);
    for word in d.args.iter().skip(2) {
        let text = word.bytes.as_slice();
        let fault = |what: &str, value: &[u8]| {
            d.error_at(word, format!("invalid {what} \"{}\"", String::from_utf8_lossy(value)))
        };
        if let Some(value) = text.strip_prefix(b"buffer=") {
            let read = values::size(value).filter(|n| *n > 0);
            size = Some(read.ok_or_else(|| fault("buffer size", value))? as usize);
        } else if let Some(value) = text.strip_prefix(b"flush=") {
            let read = values::duration(value).filter(|t| *t > Duration::ZERO);
            flush = Some(read.ok_or_else(|| fault("flush time", value))?);
        } else if text == b"gzip" {
            gzip = Some(1);
        } else if let Some(value) = text.strip_prefix(b"gzip=") {
            let read = values::number(value).filter(|n| (1..=9).contains(n));
            gzip = Some(read.ok_or_else(|| fault("compression level", value))? as u32);
        } else if let Some(value) = text.strip_prefix(b"if=") {
            condition = Some(s.setup.template_of(d, word, value)?);
        } else {
            return Err(fault("parameter", text));
        }
    }
    let size = size.or(gzip.map(|_| GZIP_BUFFER));
    if flush.is_some() && size.is_none() {
        let path = d.arg(0).map(Word::lossy).unwrap_or_default();
        return Err(d.error(format!("no buffer is defined for access_log \"{path}\"")));
    }
    Ok((condition, size.map(|size| Buffer { size, flush, gzip })))
}

/// Lines of this place are gathered; all who log to a file gather alike.
fn gather(
    s: &mut Scope<'_, '_>,
    d: &Directive,
    path: &Word,
    place: &Place,
    buffer: Buffer,
) -> Result<(), Error> {
    let target = match place {
        Place::File(index) => s.setup.log_targets.get_mut(*index),
        Place::Named(..) => {
            return Err(d.error("buffered logs cannot have variables in name"));
        }
        Place::Syslog(_) => return Err(d.error("logs to syslog cannot be buffered")),
    };
    if let Some(target) = target {
        if target.buffer.is_some_and(|other| other != buffer) {
            let text = format!(
                "access_log \"{}\" already defined with conflicting parameters",
                path.lossy()
            );
            return Err(d.error_at(path, text));
        }
        target.buffer = Some(buffer);
    }
    Ok(())
}

/// `open_log_file_cache max=N [inactive=time] [min_uses=N] [valid=time]`, `open_log_file_cache off`
pub fn open_log_file_cache(s: &mut Scope<'_, '_>, d: &Directive) -> Result<(), Error> {
    s.once(d)?;
    let mut cache = Cache::default();
    let mut off = false;
    for word in &d.args {
        let seconds = |text: &[u8]| values::sec(text).map(Duration::from_secs);
        let text = word.bytes.as_slice();
        let read = if let Some(value) = text.strip_prefix(b"max=") {
            values::number(value).map(|n| cache.max = n as usize)
        } else if let Some(value) = text.strip_prefix(b"inactive=") {
            seconds(value).map(|time| cache.inactive = time)
        } else if let Some(value) = text.strip_prefix(b"min_uses=") {
            values::number(value).map(|n| cache.min_uses = n)
        } else if let Some(value) = text.strip_prefix(b"valid=") {
            seconds(value).map(|time| cache.valid = time)
        } else if text == b"off" {
            off = true;
            Some(())
        } else {
            None
        };
        read.ok_or_else(|| {
            let text = format!("invalid \"open_log_file_cache\" parameter \"{}\"", word.lossy());
            d.error_at(word, text)
        })?;
    }
    if !off && cache.max == 0 {
        return Err(d.error("\"open_log_file_cache\" must have \"max\" parameter"));
    }
    Scope::change(&mut s.location.log).cache = (!off).then_some(cache);
    Ok(())
}

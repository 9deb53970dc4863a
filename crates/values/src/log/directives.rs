//! The parameters of the log directives.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use weir_conf::{Directive, Error, Word, values};
use weir_log::{Cause, OpenLogs, Syslog};

use super::file::{Buffer, LogTarget};
use super::format::{Escape, Format};
use super::path::OpenLogFiles;
use super::{AccessLog, Conf, LogDestination, Logs};
use crate::reading::Reading;
use crate::subject::Subject;
use crate::template::Template;

/// The size of the buffer for `gzip` without `buffer`.
const GZIP_BUFFER: usize = 64 * 1024;

/// The state that the log directives read and add to.
pub struct Files<'r, S> {
    /// Variables and warnings.
    pub reading: Reading<'r, S>,
    /// The log files so far.
    pub targets: &'r mut Vec<LogTarget>,
    /// Where relative names begin.
    pub prefix: &'r Path,
    /// Files that are reopened together.
    pub logs: &'r OpenLogs,
    /// The predefined formats: a format's text and escaping, by its name as written.
    pub ready: fn(&[u8]) -> Option<(&'static str, Escape)>,
}

/// `log_format name [escape=default|json|none] string ...`
pub fn log_format<S: Subject>(
    s: &mut Files<'_, S>,
    conf: &mut Conf,
    d: &Directive,
) -> Result<(), Error> {
    let Some((name, mut words)) = d.args.split_first() else { return Ok(()) };
    let formats = &conf.formats;
    if (s.ready)(&name.bytes).is_some() || formats.iter().any(|f| f.name == name.bytes) {
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
    let format = Format::new(s.reading.variables, &name.bytes, escape, texts);
    let format = format.map_err(|text| d.error(text))?;
    Arc::make_mut(&mut conf.formats).push(Arc::new(format));
    Ok(())
}

/// `access_log off`,
/// `access_log path [format [buffer=size] [gzip[=level]] [flush=time] [if=condition]]`. With
/// `first`, the first line of its block, inherited logs are dropped. `usual` is the default format.
pub fn access_log<S: Subject>(
    s: &mut Files<'_, S>,
    conf: &mut Conf,
    d: &Directive,
    first: bool,
    usual: Option<&[u8]>,
) -> Result<(), Error> {
    let Some(path) = d.arg(0) else { return Ok(()) };
    if path.is("off") {
        if let Some(extra) = d.arg(1) {
            return Err(d.invalid("parameter", extra));
        }
        conf.logs = Logs::Off;
        return Ok(());
    }
    let place = place(s, d, path)?;
    let format = match d.arg(1) {
        Some(word) => named_format(s, conf, &word.bytes)
            .ok_or_else(|| d.error_at(word, format!("unknown log format \"{}\"", word.lossy())))?,
        None => match usual.and_then(|name| named_format(s, conf, name)) {
            Some(format) => format,
            None => return Err(d.error("log format is not specified")),
        },
    };
    let (condition, buffer) = parameters(s, d)?;
    if let Some(buffer) = buffer {
        gather(s, d, path, &place, buffer)?;
    }
    let log = AccessLog { place, format, condition };
    let logs = &mut conf.logs;
    match logs {
        Logs::To(list) if !first => Arc::make_mut(list).push(log),
        Logs::Off if !first => {}
        _ => *logs = Logs::To(Arc::new(vec![log])),
    }
    Ok(())
}

/// Sets the log of a subject without a log of its own, in a predefined format. Returns the target's
/// index.
pub fn default_log<S: Subject>(
    s: &mut Files<'_, S>,
    conf: &mut Conf,
    path: &Path,
    format: &[u8],
) -> Result<usize, Error> {
    let target = open(s.targets, s.logs, path.to_owned())?;
    let Some(format) = named_format(s, conf, format) else { return Ok(target) };
    let log = AccessLog { place: LogDestination::File(target), format, condition: None };
    conf.logs = Logs::To(Arc::new(vec![log]));
    Ok(target)
}

fn place<S: Subject>(
    s: &mut Files<'_, S>,
    d: &Directive,
    word: &Word,
) -> Result<LogDestination, Error> {
    if let Some(parameters) = word.bytes.strip_prefix(b"syslog:") {
        let parameters = String::from_utf8_lossy(parameters);
        let server = Syslog::parse(&parameters).map_err(|e| d.error_at(word, e.to_string()))?;
        return Ok(LogDestination::Syslog(Arc::new(server)));
    }
    let path = s.prefix.join(std::ffi::OsStr::from_bytes(&word.bytes));
    if !word.bytes.contains(&b'$') {
        return open(s.targets, s.logs, path).map(LogDestination::File);
    }
    let name = s.reading.template_of(d, word, path.as_os_str().as_bytes())?;
    s.targets.push(LogTarget { path, file: None, buffer: None });
    Ok(LogDestination::Named(s.targets.len() - 1, name))
}

/// The index of the target with this path.
///
/// # Errors
///
/// The file cannot be opened.
pub fn open(targets: &mut Vec<LogTarget>, logs: &OpenLogs, path: PathBuf) -> Result<usize, Error> {
    if let Some(at) = targets.iter().position(|t| t.path == path && t.file.is_some()) {
        return Ok(at);
    }
    let file = logs.open_later(&path);
    let file = file.map_err(|e| {
        Error::emerg(format_args!("open() \"{}\" failed {}", path.display(), Cause(&e)))
    })?;
    targets.push(LogTarget { path, file: Some(file), buffer: None });
    Ok(targets.len() - 1)
}

/// The format of this name. `format=json` names a predefined one.
fn named_format<S: Subject>(s: &mut Files<'_, S>, conf: &Conf, name: &[u8]) -> Option<Arc<Format>> {
    let bare = name.strip_prefix(b"format=").unwrap_or(name);
    if let Some(found) = conf.formats.iter().find(|f| f.name.eq_ignore_ascii_case(bare)) {
        return Some(found.clone());
    }
    let (text, escape) = (s.ready)(name)?;
    let words = std::iter::once(text.as_bytes());
    Format::new(s.reading.variables, bare, escape, words).ok().map(Arc::new)
}

fn parameters<S: Subject>(
    s: &mut Files<'_, S>,
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
            condition = Some(s.reading.template_of(d, word, value)?);
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

/// Sets the buffer of a log file. All lines that name the file must have the same parameters.
fn gather<S>(
    s: &mut Files<'_, S>,
    d: &Directive,
    path: &Word,
    place: &LogDestination,
    buffer: Buffer,
) -> Result<(), Error> {
    let target = match place {
        LogDestination::File(index) => s.targets.get_mut(*index),
        LogDestination::Named(..) => {
            return Err(d.error("buffered logs cannot have variables in name"));
        }
        LogDestination::Syslog(_) => return Err(d.error("logs to syslog cannot be buffered")),
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
pub fn open_log_file_cache(conf: &mut Conf, d: &Directive) -> Result<(), Error> {
    let mut cache = OpenLogFiles::default();
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
    conf.cache = (!off).then_some(cache);
    Ok(())
}

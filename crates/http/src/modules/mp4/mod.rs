//! Sends a time span of an MP4 file. nginx: ngx_http_mp4_module.

use bytes::Bytes;
use weir_conf::{Directive as Line, Error};
use weir_engine::{Boxed, Chain, Segment};
use weir_log::{Cause, Level};
use weir_proto::mp4::TimeSpan;
use weir_proto::uri;

use crate::config::module::Module;
use crate::config::scope::{Directive, Scope, Set, setting};
use crate::files::Opened;
use crate::modules::static_;
use crate::phases::{Answer, Later, Step};
use crate::request::Request;
use crate::site::content::ContentHandler;
use crate::site::settings::{Key, Settings};

mod file;

use file::Mp4Selection;

/// Settings.
#[derive(Debug, Clone)]
pub struct Conf {
    buffer_size: u64,
    max_buffer_size: u64,
    start_key_frame: bool,
}

impl Default for Conf {
    fn default() -> Self {
        let (buffer_size, max_buffer_size) = (512 * 1024, 10 * 1024 * 1024);
        Conf { buffer_size, max_buffer_size, start_key_frame: false }
    }
}

impl Settings for Conf {}

const DIRECTIVES: &[Directive] = &[
    Directive {
        name: "mp4",
        help: "Sends MP4 videos from the second `start` of the query to the second `end`.",
        set: Set::Simple(set),
    },
    setting!(
        "mp4_buffer_size",
        CONF.buffer_size,
        Line::size,
        "The size of a file's tables that is allowed even if `mp4_max_buffer_size` is smaller."
    ),
    setting!(
        "mp4_max_buffer_size",
        CONF.max_buffer_size,
        Line::size,
        "The maximum size of a file's tables, which are read into memory."
    ),
    setting!(
        "mp4_start_key_frame",
        CONF.start_key_frame,
        Line::flag,
        "Whether a part begins at a key frame. Frames before `start` are then hidden."
    ),
];

/// The module's settings.
pub static CONF: Key<Conf> = Key::new();

/// The module.
pub const MODULE: Module = Module { name: "http_mp4", directives: DIRECTIVES, ..Module::NEW };

/// The content handler.
static CONTENT: ContentHandler<()> = ContentHandler {
    module: "mp4",
    in_limit_except: false,
    optional: false,
    run: |r, ()| Answer::Later(handler(r)),
};

/// The content handler of a location with `mp4`.
fn handler(r: &mut Request) -> Later<'_> {
    Boxed::new(move || send(r))
}

async fn send(r: &mut Request) -> Step {
    let (opened, path) = match static_::open_file(r).await {
        Ok(opened) => opened,
        Err(step) => return step,
    };
    let whole = |opened: &Opened| Segment::File {
        file: opened.file.clone(),
        offset: 0,
        len: opened.info.len,
    };
    let mut chain = Chain::new();
    let Some(wanted) = wanted(&r.args, CONF.of(r.conf()).start_key_frame) else {
        chain.push(whole(&opened));
        return static_::send_part(r, &opened, chain).await;
    };
    r.response.single_range = true;
    match find(r, &opened, wanted).await {
        Mp4Selection::Whole => chain.push(whole(&opened)),
        Mp4Selection::Part(ftyp, cut) => {
            chain.push(Bytes::from(ftyp));
            chain.push(Bytes::from(cut.head));
            let len = cut.data.end - cut.data.start;
            let (file, offset) = (opened.file.clone(), cut.data.start);
            chain.push(Segment::File { file, offset, len });
        }
        Mp4Selection::Problem(problem) => {
            let text = problem.about(&weir_log::Bytes(&path).to_string());
            r.log(Level::Error, format_args!("{text}"));
            return Step::Status(500);
        }
        Mp4Selection::Failed(error) => {
            let (path, cause) = (weir_log::Bytes(&path), Cause(&error));
            r.log(Level::Crit, format_args!("pread() \"{path}\" failed {cause}"));
            return Step::Status(500);
        }
    }
    static_::send_part(r, &opened, chain).await
}

async fn find(r: &Request, opened: &Opened, wanted: TimeSpan) -> Mp4Selection {
    let conf = CONF.of(r.conf());
    let most = conf.max_buffer_size.max(conf.buffer_size);
    let (file, end) = (opened.file.clone(), opened.info.len);
    let found = r.event_loop.handle.files().run(move || file::find(&file, end, wanted, most)).await;
    found.unwrap_or_else(Mp4Selection::Failed)
}

/// The time span that the query requests. `None` if it requests the whole file.
fn wanted(args: &[u8], key_frame: bool) -> Option<TimeSpan> {
    let time = |name: &[u8]| uri::arg(args, name).and_then(milliseconds);
    let (start, end) = (time(b"start"), time(b"end").filter(|end| *end > 0));
    let length = end.unwrap_or(0).saturating_sub(start.unwrap_or(0));
    (start.is_some() || end.is_some()).then(|| TimeSpan {
        start: start.unwrap_or(0),
        length,
        key_frame,
    })
}

/// Parses seconds with a fraction, of which three digits count.
fn milliseconds(text: &[u8]) -> Option<u64> {
    let mut halves = text.splitn(2, |b| *b == b'.');
    let (whole, fraction) = (halves.next()?, halves.next().unwrap_or_default());
    if text.is_empty() || !whole.iter().chain(fraction).all(u8::is_ascii_digit) {
        return None;
    }
    let digits = fraction.iter().chain(std::iter::repeat(&b'0')).take(3);
    let value = whole.iter().chain(digits).try_fold(0u64, |value, digit| {
        value.checked_mul(10)?.checked_add(u64::from(digit - b'0'))
    })?;
    (value <= i64::MAX as u64).then_some(value)
}

fn set(s: &mut Scope<'_, '_>, _: &Line) -> Result<(), Error> {
    s.answer_with(CONTENT.with(()));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_in_queries() {
        for (text, time) in
            [("7.1", 7100), ("2", 2000), (".5", 500), ("1.23456789", 1234), ("0", 0)]
        {
            assert_eq!(milliseconds(text.as_bytes()), Some(time), "{text}");
        }
        for text in ["", "1.2.3", "-1", "x", "99999999999999999999"] {
            assert_eq!(milliseconds(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn spans_in_queries() {
        let span = |args: &str| wanted(args.as_bytes(), false).map(|w| (w.start, w.length));
        assert_eq!(span("start=1&end=3"), Some((1000, 2000)));
        assert_eq!(span("end=3"), Some((0, 3000)));
        assert_eq!(span("start=3&end=1"), Some((3000, 0)));
        assert_eq!(span("start=x"), None);
        assert_eq!(span("end=0"), None);
    }
}

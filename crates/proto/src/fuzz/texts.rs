//! Values of headers, and what stands in URIs.

use crate::base64::{self, Alphabet};
use crate::conditional::{self, ModifiedSince};
use crate::trace_context::{self, TraceContext};
use crate::uri::{self, Escape, Unescape};
use crate::{date, range};

#[test]
fn ranges() {
    bolero::check!().for_each(|input: &[u8]| {
        for length in [0, 1, 1000, u64::MAX] {
            for most in [None, Some(2)] {
                let mut found = Vec::new();
                let kind = range::parse(input, length, most, &mut found);
                let sound = |r: &range::ByteRange| r.start < r.end && r.end <= length;
                assert!(found.iter().all(sound), "{kind:?} {found:?}");
                if kind == range::Ranges::Partial {
                    assert!(!found.is_empty() && found.len() <= most.unwrap_or(usize::MAX));
                }
            }
        }
    });
}

#[test]
fn path() {
    bolero::check!().for_each(|input: &[u8]| {
        let (mut plain, mut again, mut written) = (Vec::new(), Vec::new(), Vec::new());
        // Paths as the request line's reader passes them on: it refuses NUL.
        let raw = [b"/", input].concat();
        if raw.contains(&0) || uri::normalise(&raw, true, &mut plain).is_err() {
            return;
        }
        assert!(plain.starts_with(b"/") && !plain.contains(&0));
        assert!(plain.split(|&ch| ch == b'/').all(|part| part != b".." && part != b"."));
        uri::escape(Escape::Uri, &plain, &mut written);
        uri::normalise(&written, true, &mut again).expect("what was written can be read");
        assert_eq!(plain, again);
        let _ = uri::extension(&plain);
        if let Ok(safe) = uri::is_unsafe(input) {
            assert!(safe.path.split(|&ch| ch == b'/').all(|part| part != b".."));
        }
    });
}

#[test]
fn escapes() {
    bolero::check!().for_each(|input: &[u8]| {
        for kind in [Escape::Uri, Escape::UriComponent, Escape::Memcached] {
            let (mut written, mut read) = (Vec::new(), Vec::new());
            uri::escape(kind, input, &mut written);
            let used = uri::unescape(Unescape::All, &written, &mut read);
            assert_eq!((read.as_slice(), used), (input, written.len()));
        }
        for kind in [Unescape::All, Unescape::Uri, Unescape::Redirect] {
            let mut read = Vec::new();
            assert!(uri::unescape(kind, input, &mut read) <= input.len());
            assert!(read.len() <= input.len());
        }
        let mut html = Vec::new();
        uri::escape_html(input, &mut html);
        assert!(!html.iter().any(|ch| matches!(ch, b'<' | b'>' | b'"')));
    });
}

#[test]
fn hosts_and_arguments() {
    bolero::check!().for_each(|input: &[u8]| {
        if let Ok(host) = uri::host_valid(input) {
            assert!(0 < host.len && host.len <= input.len());
            assert!(!input[..host.len].iter().any(|ch| matches!(ch, 0..=b' ' | b'/')));
        }
        let _ = uri::arg(input, b"a");
        let _ = uri::set_cookie_value(input, b"a");
        for separator in [b';', b','] {
            let value = uri::list_value(input, b"a", separator);
            assert!(value.is_none_or(|value| !value.contains(&separator)));
        }
    });
}

#[test]
fn dates() {
    bolero::check!().for_each(|input: &[u8]| {
        // What is written begins with 1970.
        if let Some(time) = date::parse(input).filter(|time| *time >= 0) {
            let written = date::imf_fixdate(time);
            assert_eq!(date::parse(&written), Some(time));
        }
        for how in [ModifiedSince::Exact, ModifiedSince::Before] {
            conditional::modified(input, Some(784_111_777), how);
        }
        conditional::unmodified(input, Some(784_111_777));
        conditional::range_applies(input, Some(b"\"tag\""), Some(784_111_777));
        // A strong match is a weak one, too.
        for tag in [&b"\"tag\""[..], b"W/\"tag\""] {
            let strong = conditional::etag_matches(input, Some(tag), false);
            assert!(!strong || conditional::etag_matches(input, Some(tag), true));
        }
    });
}

#[test]
fn base64_texts() {
    bolero::check!().for_each(|input: &[u8]| {
        for alphabet in [Alphabet::Plain, Alphabet::Url] {
            let mut text = Vec::new();
            base64::encode(alphabet, input, &mut text);
            assert_eq!(base64::decode(alphabet, &text).as_deref(), Some(input));
            if let Some(bytes) = base64::decode(alphabet, input) {
                assert!(bytes.len() <= input.len());
            }
        }
    });
}

#[test]
fn traces() {
    bolero::check!().for_each(|input: &[u8]| {
        let lines = || input.split(|&ch| ch == b'\n');
        if let Some(context) = TraceContext::parse(lines()) {
            let mut written = Vec::new();
            context.write(&mut written);
            // All but version and flags is passed on as it came, and any reader reads it likewise.
            assert_eq!(written[2..53], input[2..53]);
            assert_eq!(TraceContext::parse([written.as_slice()].into_iter()), Some(context));
        }
        if let Some(state) = trace_context::state(lines()) {
            assert!(state.iter().all(|b| (b' '..=b'~').contains(b)), "{state:?}");
            assert_eq!(trace_context::state([state.as_slice()].into_iter()), Some(state));
        }
    });
}

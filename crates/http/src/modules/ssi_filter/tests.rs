use bytes::Bytes;
use proptest::prelude::*;
use weir_testkit::spent;

use super::parser::{Event, Parser};
use super::{MOST_KEPT, SsiShared};
use crate::trial::complaint;

/// All events of a page that comes in these pieces. Consecutive texts are joined.
pub fn events(pieces: &[&[u8]]) -> Vec<Event> {
    let mut parser = Parser::new(16);
    let mut all: Vec<Event> = Vec::new();
    let mut add = |event: Event| {
        if let (Some(Event::Text(last)), Event::Text(more)) = (all.last_mut(), &event) {
            *last = [last.as_ref(), more].concat().into();
            return;
        }
        all.push(event);
    };
    for piece in pieces {
        let mut input = Bytes::copy_from_slice(piece);
        while let Some(event) = parser.next(&mut input) {
            add(event);
        }
    }
    if let Some(event) = parser.end() {
        add(event);
    }
    all
}

fn text(text: &str) -> Event {
    Event::Text(Bytes::copy_from_slice(text.as_bytes()))
}

/// Shows events: text as it is, commands in brackets, complaints between exclamation marks.
fn shown(page: &str) -> String {
    let mut out = String::new();
    for event in events(&[page.as_bytes()]) {
        match event {
            Event::Text(bytes) => out.push_str(&String::from_utf8_lossy(&bytes)),
            Event::Broken => out.push_str("[broken]"),
            Event::Complaint(text) => out.push_str(&format!("!{text}!")),
            Event::Command(command) => {
                let mut written = Vec::new();
                command.write(&mut written);
                out.push_str(&format!("[{}]", String::from_utf8_lossy(&written)));
            }
        }
    }
    out
}

#[test]
fn commands_are_separated_from_text() {
    assert_eq!(shown("a<!--#echo var=\"x\" -->b"), "a[<!--#echo var=\"x\" -->]b");
    assert_eq!(
        shown("<!--# echo var = 'x'\tdefault=\"\"-->"),
        "[<!--#echo var=\"x\" default=\"\" -->]"
    );
    assert_eq!(shown("<!--#endif-->"), "[<!--#endif -->]");
    assert_eq!(
        shown("<!--#set var=\"x\" value=\"a\\\"b\" -->"),
        "[<!--#set var=\"x\" value=\"a\\\"b\" -->]"
    );
}

#[test]
fn an_incomplete_opening_is_text() {
    for page in ["a<b", "<!-- c -->", "<<<!-", "<!--", "<!-<!--x", "<"] {
        assert_eq!(events(&[page.as_bytes()]), [text(page)], "{page}");
    }
}

#[test]
fn broken_commands_are_skipped_to_their_end() {
    let complaint = "unexpected \"-\" symbol after \"var\" parameter in \"echo\" SSI command";
    assert_eq!(shown("<!--#echo var-->x"), format!("!{complaint}![broken]x"));
    let long =
        "too long \"aaaaaaaaaaaaaaaaa...\" value of \"var\" parameter in \"echo\" SSI command";
    assert_eq!(shown("<!--#echo var='aaaaaaaaaaaaaaaaab' -->"), format!("!{long}![broken]"));
    let after =
        "unexpected \"b\" symbol after \"a\" value of \"var\" parameter in \"echo\" SSI command";
    assert_eq!(shown("<!--#echo var='a'b -->"), format!("!{after}![broken]"));
    assert_eq!(shown("<!--#a-b-->"), "!unexpected \"b\" symbol in \"a\" SSI command![broken]");
}

#[test]
fn variables_of_a_page_have_no_case() {
    let mut shared = SsiShared::default();
    shared.set(b"Name", b"1".to_vec());
    shared.set(b"nAME", b"2".to_vec());
    assert_eq!(shared.get(b"name"), Some(b"2".as_slice()));
    assert_eq!(shared.variables.len(), 1);
    assert_eq!(shared.get(b"1"), None);
    shared.groups = vec![b"all".to_vec(), b"one".to_vec()];
    assert_eq!(shared.get(b"1"), Some(b"one".as_slice()));
}

#[test]
fn many_page_variables_are_set_in_time() {
    let time = |many: u32| {
        let mut shared = SsiShared::default();
        spent(|| assert!((0..many).all(|n| shared.set(format!("v{n}").as_bytes(), Vec::new()))))
    };
    let (few, many) = (time(2_000), time(40_000));
    assert!(many < few * 100, "{few:?}, {many:?}");
}

#[test]
fn the_size_of_page_variables_is_limited() {
    let mut shared = SsiShared::default();
    let (name, large) = (b"name", vec![b'x'; MOST_KEPT / 2]);
    assert!(shared.set(name, large.clone()));
    assert!(shared.set(name, large.clone()));
    assert!(!shared.set(b"other", large.clone()));
    assert_eq!(shared.get(b"other"), None);
    assert!(shared.set(name, Vec::new()) && shared.set(b"other", large));
}

#[test]
fn directives_are_checked() {
    assert_eq!(complaint("ssi on; ssi off;"), "\"ssi\" directive is duplicate");
    assert_eq!(complaint("ssi_value_length x;"), "\"ssi_value_length\" directive invalid value");
}

proptest! {
    #[test]
    fn cutting_a_page_changes_nothing(
        page in "(<!--#|<!-|-->|<|>|[a-c]| |=|\"|'|-|\\\\|#){0,40}",
        cuts in prop::collection::vec(0usize..60, 0..6),
    ) {
        let page = page.as_bytes();
        let mut cuts: Vec<usize> = cuts.into_iter().map(|at| at.min(page.len())).collect();
        cuts.sort_unstable();
        let mut pieces = Vec::new();
        let mut from = 0;
        for at in cuts {
            pieces.push(&page[from..at]);
            from = at;
        }
        pieces.push(&page[from..]);
        prop_assert_eq!(events(&pieces), events(&[page]));
    }
}

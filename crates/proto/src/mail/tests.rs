//! Tests of both grammars.

use proptest::prelude::*;

use super::*;

fn words(words: &[&str]) -> Vec<Vec<u8>> {
    words.iter().map(|word| word.as_bytes().to_vec()).collect()
}

#[test]
fn a_line_is_a_verb_and_words() {
    let LineProgress::Command { command, len } = smtp(b"mail FROM:<a@b>  SIZE=1 \r\nRCPT") else {
        panic!("no command");
    };
    assert_eq!((command.verb, len), (SmtpVerb::Mail, 26));
    assert_eq!(command.args, words(&["FROM:<a@b>", "SIZE=1"]));
    assert_eq!(command.text, b"mail FROM:<a@b>  SIZE=1");
    assert_eq!(smtp(b"NOOP"), LineProgress::More);
    for bad in ["\r\n", "MAILX\n", "NOOP\rx\n", "AUTH 1 2 3 4 5 6 7 8 9 10 11 12\n", " QUIT\n"] {
        assert_eq!(smtp(bad.as_bytes()), LineProgress::Invalid { len: bad.len() }, "{bad:?}");
    }
}

#[test]
fn names_and_passwords_of_pop3_hold_spaces() {
    let args = |line: &str| match pop3(line.as_bytes()) {
        LineProgress::Command { command, .. } => command.args,
        other => panic!("{line}: {other:?}"),
    };
    assert_eq!(args("USER a b \r\n"), words(&["a b "]));
    assert_eq!(args("APOP a  b\n"), words(&["a", "b"]));
    assert_eq!(args("PASS \r\n"), words(&[]));
}

#[test]
fn an_answer_is_one_word_and_may_be_empty() {
    let word = |line: &str| match answer(line.as_bytes()) {
        LineProgress::Command { command, .. } => command.args,
        other => panic!("{line}: {other:?}"),
    };
    assert_eq!(word("\r\n"), words(&[""]));
    assert_eq!(word("YQ== x\r\n"), words(&["YQ=="]));
}

#[test]
fn arguments_of_imap_are_words_quoted_or_literals() {
    let login = |text: &str, granted| match imap(text.as_bytes(), granted) {
        ImapProgress::Command { command, len } => (command.args, len),
        other => panic!("{text:?}: {other:?}"),
    };
    let of = |text: &str, granted, args: &[&str]| {
        assert_eq!(login(text, granted), (words(args), text.len()), "{text:?}");
    };
    of("a1 LOGIN user pass\r\n", 0, &["user", "pass"]);
    of("a1 login \"a \\\"b\\\\\" {3+}\r\nx y\r\n", 0, &["a \"b\\", "x y"]);
    of("a1 LOGIN {1}\r\na {0}\r\n\r\n", 2, &["a", ""]);
    of("a1 LOGIN {4}\na\r\nb \"\"\n", 1, &["a\r\nb", ""]);
}

#[test]
fn a_literal_waits_for_leave() {
    assert_eq!(imap(b"a LOGIN {1}\r\n", 0), ImapProgress::Literal);
    assert_eq!(imap(b"a LOGIN {1}\r\n", 1), ImapProgress::More);
    assert_eq!(imap(b"a LOGIN {1}\r\nx {1}\r\n", 1), ImapProgress::Literal);
}

#[test]
fn a_wrong_line_of_imap_keeps_its_tag() {
    let invalid = |text: &str| match imap(text.as_bytes(), 0) {
        ImapProgress::Invalid { tag, len, literal_follows } => (tag, len, literal_follows),
        other => panic!("{text:?}: {other:?}"),
    };
    assert_eq!(invalid("a1 FETCH 1\r\nb NOOP\r\n"), (b"a1 ".to_vec(), 12, false));
    assert_eq!(invalid("a1 FETCH {10+}\r\n"), (b"a1 ".to_vec(), 16, true));
    assert_eq!(invalid("*\r\n"), (Vec::new(), 3, false));
    assert_eq!(invalid("a LOGIN \"x\r\n"), (b"a ".to_vec(), 12, false));
    assert_eq!(invalid("a LOGIN {99999999999999999999}\r\n").0, b"a ");
    assert_eq!(invalid("a NOOP 1 2 3 4\r\n").0, b"a ");
}

proptest! {
    /// Bytes that come one by one mean the same as at once, and what is read is never more than there is.
    #[test]
    fn pieces_mean_the_same(input in proptest::collection::vec(
        prop_oneof![Just(b' '), Just(b'\r'), Just(b'\n'), Just(b'"'), Just(b'{'), Just(b'}'), Just(b'+'),
            Just(b'1'), Just(b'L'), Just(b'\\'), any::<u8>()], 0..60), login in any::<bool>())
    {
        let input = if login { [b"a LOGIN ".as_slice(), &input].concat() } else { input };
        let whole = imap(&input, 1);
        for end in 0..=input.len() {
            match imap(&input[..end], 1) {
                ImapProgress::More => {}
                other => { prop_assert_eq!(&other, &whole); break; }
            }
        }
        if let ImapProgress::Command { len, .. } | ImapProgress::Invalid { len, .. } = whole {
            prop_assert!(len <= input.len() && input[len - 1] == b'\n');
        }
        for end in 0..=input.len() {
            match smtp(&input[..end]) {
                LineProgress::More => {}
                other => { prop_assert_eq!(&other, &smtp(&input)); break; }
            }
        }
    }
}

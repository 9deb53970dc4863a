use proptest::prelude::*;

use super::*;

const NOW: i64 = 1_000_000_000;

fn facts(head: &str) -> Facts {
    Facts::of_head(head.as_bytes(), |_| false, None)
}

fn storing(head: &str) -> Storing {
    facts(head).storing(200, &Wanted::default(), (NOW, 0), None)
}

fn wanted(line: &str) -> Wanted {
    Wanted::of([(&b"Cache-Control"[..], line.as_bytes())].into_iter())
}

/// Seconds of life that are left to an answer that has just come; `None`: it is not stored.
fn left(head: &str) -> Option<i64> {
    let storing = storing(head);
    storing.refused.is_none().then(|| storing.life.left())
}

fn date(time: i64) -> String {
    String::from_utf8_lossy(&date::imf_fixdate(time)).into_owned()
}

#[test]
fn a_lifetime_is_read_as_the_standard_says() {
    for (line, expected) in [
        ("max-age=60", Some(60)),
        ("s-maxage=5, max-age=60", Some(5)),
        ("MAX-AGE=60, max-age=1", Some(60)),
        ("max-age=\"60\"", Some(60)),
        ("other=\"max-age=60, no-store\", max-age=7", Some(7)),
        ("max-age=99999999999999999999", Some(1 << 31)),
        ("max-age=x", None),
        ("max-age=-1", None),
        ("max-age=60, no-store", None),
        ("max-age=60, private", None),
        ("max-age=60, private=\"a, b\"", Some(60)),
        ("max-age=60, private=a", Some(60)),
        // What names no fields is about the whole.
        ("max-age=60, private=\"\"", None),
        ("max-age=60, private=\"a b\"", None),
        ("max-age=60, private=\"a", None),
        ("max-age=60, private =\"a", None),
        ("max-age=60, private = \"a\"", Some(60)),
        ("max-age =60", None),
        ("max-age=60, no-store, must-understand", Some(60)),
        ("max-age=60, no-cache", None),
        ("max-age=60, x=\"open, no-store", None),
        ("", None),
    ] {
        assert_eq!(left(&format!("Cache-Control: {line}\r\n\r\n")), expected, "{line}");
    }
}

#[test]
fn age_counts_from_when_the_answer_was_made() {
    assert_eq!(left("Cache-Control: max-age=60\r\nAge: 20, 1\r\n\r\n"), Some(40));
    assert_eq!(left("Cache-Control: max-age=60\r\nAge: x\r\n\r\n"), Some(60));
    assert_eq!(left("Cache-Control: max-age=60\r\nAge: 9223372036854775808\r\n\r\n"), None);
    let old = date(NOW - 30);
    assert_eq!(left(&format!("Cache-Control: max-age=60\r\nDate: {old}\r\n\r\n")), Some(30));
    let (old, until) = (date(NOW - 30), date(NOW + 30));
    assert_eq!(left(&format!("Date: {old}\r\nExpires: {until}\r\n\r\n")), Some(30));
    assert_eq!(left("Expires: 0\r\n\r\n"), None);
    let zone = until.replace("GMT", "UTC");
    assert_eq!(left(&format!("Date: {old}\r\nExpires: {zone}\r\n\r\n")), None);
    assert_eq!(left("Expires: Thu, 18 Foo 2050 02:01:18 GMT\r\n\r\n"), None);
    let changed = date(NOW - 1000);
    assert_eq!(left(&format!("Last-Modified: {changed}\r\n\r\n")), Some(100));
}

#[test]
fn secrets_are_stored_only_if_the_answer_says_so() {
    let asks = Wanted { authorized: true, ..Wanted::default() };
    for (line, expected) in
        [("max-age=9", false), ("max-age=9, public", true), ("s-maxage=9", true)]
    {
        let facts = facts(&format!("Cache-Control: {line}\r\n\r\n"));
        assert_eq!(facts.storing(200, &asks, (NOW, 0), None).refused.is_none(), expected, "{line}");
    }
    let varies = storing("Cache-Control: max-age=9\r\nVary: a\r\nVary: b, *\r\n\r\n");
    assert_eq!(varies.refused, Some(Refusal::VaryAnything));
}

#[test]
fn requests_have_a_say() {
    let ask = |head: &str, line: &str, age: i64| {
        facts(head).serving(200, &wanted(line), NOW, NOW - age, None)
    };
    let hour = "Cache-Control: max-age=3600\r\n\r\n";
    assert!(matches!(ask(hour, "", 3599), Serving::Fresh(life) if life.left() == 1));
    let why = |line: &str, age: i64| match ask(hour, line, age) {
        Serving::Ask { why, .. } => Some(why),
        _ => None,
    };
    assert_eq!(why("", 3600), Some(Lookup::TooOld));
    assert_eq!(why("no-cache", 1), Some(Lookup::AskedNoCache));
    assert_eq!(why("max-age=5", 6), Some(Lookup::AskedMaxAge));
    assert_eq!(why("min-fresh=10", 3595), Some(Lookup::AskedMinFresh));
    assert!(matches!(ask(hour, "max-stale=10", 3605), Serving::Stale(_)));
    assert!(matches!(ask(hour, "max-stale=1", 3605), Serving::Ask { .. }));
    let strict = "Cache-Control: max-age=3600, must-revalidate, stale-if-error=60\r\n\r\n";
    let may = |serving| match serving {
        Serving::Ask { updating, error, never_stale, .. } => Some((updating, error, never_stale)),
        _ => None,
    };
    assert_eq!(may(ask(strict, "max-stale", 3605)), Some((false, false, true)));
    let lenient = "Cache-Control: max-age=1, stale-if-error=60, stale-while-revalidate=9\r\n\r\n";
    assert_eq!(may(ask(lenient, "", 5)), Some((true, true, false)));
}

#[test]
fn a_field_for_such_caches_counts_as_a_whole_or_not_at_all() {
    let both = |line: &str| {
        left(&format!("CDN-Cache-Control: {line}\r\nCache-Control: max-age=7\r\n\r\n"))
    };
    assert_eq!(both("max-age=60"), Some(60));
    assert_eq!(both("no-store"), None);
    let own = |head: &str| {
        let facts = Facts::of_head(head.as_bytes(), |_| false, Some(b"Weir-Cache-Control"));
        facts.storing(200, &Wanted::default(), (NOW, 0), None).life.lifetime
    };
    let all = "Cache-Control: max-age=7\r\nCDN-Cache-Control: max-age=8\r\n";
    assert_eq!(own(&format!("{all}weir-cache-control: max-age=9\r\n\r\n")), 9);
    assert_eq!(own(&format!("{all}weir-cache-control: &\r\n\r\n")), 8);
    for broken in ["max-age=60, &&", "max-age=\"60\"", "max-age =60", "max-age=-1"] {
        assert_eq!(both(broken), Some(7), "{broken}");
    }
}

#[test]
fn an_unchanged_answer_takes_the_new_fields() {
    let head = b"HTTP/1.1 200 OK\r\nA: 1\r\nA: 2\r\nAge: 9\r\nContent-Length: 3\r\nB: 4\r\n\r\n";
    let new: [Field<'_>; 3] = [(b"a", b"5"), (b"Content-Length", b"0"), (b"C", b"6")];
    let now = updated(head, new.into_iter());
    let expected = "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nB: 4\r\na: 5\r\nC: 6\r\n\r\n";
    assert_eq!(String::from_utf8_lossy(&now), expected);
    // What is for this connection alone does not get into it.
    let new: [Field<'_>; 3] = [(b"Own", b"7"), (b"Connection", b"x, OWN, b"), (b"b", b"8")];
    assert_eq!(updated(expected.as_bytes(), new.into_iter()), expected.as_bytes());
}

#[test]
fn an_answer_of_another_tag_is_not_updated() {
    let stored = b"HTTP/1.1 200 OK\r\nETag: W/\"a\"\r\n\r\n";
    let about = |tag: &[u8]| is_about(stored, [(&b"etag"[..], tag)].into_iter());
    assert!(about(b"\"a\"") && about(b"W/\"a\"") && !about(b"\"b\""));
    assert!(is_about(stored, std::iter::empty()));
    // A server that compresses says "a" in the 304 of what it sent as W/"a".
    let now = updated(stored, [(&b"ETag"[..], &b"\"a\""[..])].into_iter());
    assert_eq!(now, stored);
}

#[test]
fn other_places_of_the_same_origin_are_found() {
    let place = (&b"http"[..], &b"a.example"[..], &b"/x/y?z"[..]);
    let other = |reference: &str| {
        let key = in_place_of(b"http://backend/x/y?z", place, reference.as_bytes())?;
        Some(String::from_utf8_lossy(&key).into_owned())
    };
    let is = |path: &str| Some(format!("http://backend{path}"));
    assert_eq!(other("/new"), is("/new"));
    assert_eq!(other("new#part"), is("/x/new"));
    assert_eq!(other("../new"), is("/new"));
    assert_eq!(other("http://A.example/new"), is("/new"));
    assert_eq!(other("//a.example?new"), is("/?new"));
    assert_eq!(other("http://b.example/new"), None);
    assert_eq!(other("https://a.example/new"), None);
}

proptest! {
    #[test]
    fn an_answer_that_forbids_it_is_never_stored(
        before in "[ -~]{0,40}", behind in "[ -~]{0,40}", word in "(?i)no-store|private",
    ) {
        let head = format!("Cache-Control: {before}, {word}\r\nCache-Control: {behind}\r\n\r\n");
        let facts = facts(&head);
        prop_assert!(facts.control.must_understand || storing(&head).refused.is_some());
    }

    #[test]
    fn nothing_is_sent_as_fresh_that_is_too_old(
        lifetime in 0i64..1000, age in 0i64..2000, least in 0i64..100, most in 0i64..2000,
    ) {
        let facts = facts(&format!("Cache-Control: max-age={lifetime}\r\n\r\n"));
        let asks = wanted(&format!("min-fresh={least}, max-age={most}"));
        let fresh = facts.serving(200, &asks, NOW, NOW - age, None);
        let fresh = matches!(fresh, Serving::Fresh(_));
        prop_assert_eq!(fresh, age + least < lifetime && age <= most);
    }

    #[test]
    fn any_head_is_read(head in prop::collection::vec(any::<u8>(), 0..200), time: i64) {
        let facts = Facts::of_head(&head, |_| false, None);
        let said = facts.storing(200, &Wanted::default(), (time, 0), None);
        prop_assert!((0..=LONGEST).contains(&said.life.lifetime));
        facts.serving(200, &Wanted::default(), time, 0, Some(1));
        updated(&head, fields(&head).collect::<Vec<_>>().into_iter());
        in_place_of(&head, (b"http", b"a", b"/"), &head);
        let line = [b"Cache-Control: ", &head[..]].concat();
        let _ = Facts::of_head(&line, |_| false, Some(b"x"));
        let _ = Facts::of_head(&[b"CDN-", &line[..]].concat(), |_| false, None);
    }
}

//! Tests of the URI that is passed to a server.

use proptest::prelude::*;

use crate::upstream::http::uri::{Parts, write};

fn mapped(parts: &Parts<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    write(parts, &mut out);
    out
}

const PLAIN: Parts<'_> = Parts {
    own: b"",
    computed: false,
    location: b"/name/",
    location_holds: true,
    as_sent: None,
    path: b"/name/test",
    escapes: false,
    args: b"",
};

#[test]
fn buffers_must_leave_room_for_busy_ones() {
    let wrong = "\"proxy_busy_buffers_size\" must be less than the size of all \"proxy_buffers\" minus one buffer";
    let complaint = crate::trial::complaint("proxy_buffers 2 4k;");
    assert!(complaint.contains(wrong), "{complaint}");
    assert_eq!(crate::trial::complaint("proxy_buffers 3 4k;"), "");
}

#[test]
fn a_uri_takes_the_place_of_the_locations_name() {
    assert_eq!(mapped(&Parts { own: b"/remote/", ..PLAIN }), b"/remote/test");
    assert_eq!(mapped(&Parts { own: b"/remote/", args: b"a=b", ..PLAIN }), b"/remote/test?a=b");
    let escaped = Parts { own: b"/remote/", path: b"/name/a b", escapes: true, ..PLAIN };
    assert_eq!(mapped(&escaped), b"/remote/a%20b");
}

#[test]
fn without_a_uri_the_request_goes_on_as_it_came() {
    let sent = Parts { as_sent: Some(b"/name/%74est?x"), args: b"x", ..PLAIN };
    assert_eq!(mapped(&sent), b"/name/%74est?x");
    assert_eq!(mapped(&PLAIN), b"/name/test");
}

#[test]
fn an_appended_path_stays_below_the_uri() {
    let parts = Parts { own: b"/v1/", location: b"/api", ..PLAIN };
    for path in [&b"/api../x"[..], b"/api.."] {
        assert!(Parts { path, ..parts }.climbs());
    }
    for path in [&b"/api..x"[..], b"/api/../x", b"/api"] {
        assert!(!Parts { path, ..parts }.climbs());
    }
    assert!(!Parts { own: b"/v1", path: b"/api../x", ..parts }.climbs());
    assert!(!Parts { location_holds: false, path: b"/api../x", ..parts }.climbs());
}

#[test]
fn a_rewritten_path_goes_on_whole() {
    let rewritten =
        Parts { own: b"/remote/", location_holds: false, path: b"/else/where", ..PLAIN };
    assert_eq!(mapped(&rewritten), b"/else/where");
}

#[test]
fn a_computed_uri_is_complete() {
    let computed = Parts { own: b"/a?b", computed: true, args: b"x=y", ..PLAIN };
    assert_eq!(mapped(&computed), b"/a?b");
}

proptest! {
    /// Unescaping an escaped path gives the part of the path behind the location's name.
    #[test]
    fn what_the_server_decodes_is_what_was_meant(
        tail in prop::collection::vec(1u8..=255, 0..40),
        args in "[a-z=&]{0,10}",
    ) {
        let path = [b"/name/".as_slice(), &tail].concat();
        let parts =
            Parts { own: b"/o/", path: &path, escapes: true, args: args.as_bytes(), ..PLAIN };
        let out = mapped(&parts);
        let (uri, query) = match memchr::memchr(b'?', &out) {
            Some(at) => (&out[..at], &out[at + 1..]),
            None => (out.as_slice(), b"".as_slice()),
        };
        prop_assert_eq!(query, args.as_bytes());
        let mut decoded = Vec::new();
        weir_proto::uri::unescape(weir_proto::uri::Unescape::All, uri, &mut decoded);
        prop_assert_eq!(decoded, [b"/o/".as_slice(), &tail].concat());
    }
}

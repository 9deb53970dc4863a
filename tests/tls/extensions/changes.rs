//! The changes that cases make to a certificate: extensions, purposes, hosts, versions, times and
//! names.

use super::draft::{Draft, PRINTABLE, SEQUENCE, der, name};

pub const BASIC: &[u8] = &[0x55, 0x1d, 19];
pub const USAGE: &[u8] = &[0x55, 0x1d, 15];
pub const PURPOSES: &[u8] = &[0x55, 0x1d, 37];
pub const ALT_NAMES: &[u8] = &[0x55, 0x1d, 17];
pub const ISSUER_NAMES: &[u8] = &[0x55, 0x1d, 18];
pub const KEY_ID: &[u8] = &[0x55, 0x1d, 14];
pub const ISSUER_KEY: &[u8] = &[0x55, 0x1d, 35];
pub const NAME_CONSTRAINTS: &[u8] = &[0x55, 0x1d, 30];
pub const LISTS: &[u8] = &[0x55, 0x1d, 31];
pub const POLICIES: &[u8] = &[0x55, 0x1d, 32];
pub const MAPPINGS: &[u8] = &[0x55, 0x1d, 33];
pub const POLICY_CONSTRAINTS: &[u8] = &[0x55, 0x1d, 36];
pub const ANY_POLICY: &[u8] = &[0x55, 0x1d, 54];
pub const NETSCAPE: &[u8] = &[0x60, 0x86, 0x48, 0x01, 0x86, 0xf8, 0x42, 1, 1];
pub const PLACES: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 1, 1];
pub const ADDRESSES: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 1, 7];
pub const PROXY: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 1, 14];
pub const NO_CHECK: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 0x30, 1, 5];
pub const UNKNOWN: &[u8] = &[0x2b, 6, 1, 4, 1, 0x83, 0x77, 1];

pub const CA: [u8; 5] = [0x30, 3, 1, 1, 0xff];
pub const EMPTY: [u8; 2] = [0x30, 0];

/// A change to a certificate.
#[derive(Clone, Copy)]
pub enum Change {
    /// The extension, critical or not, has this value.
    Set(&'static [u8], bool, &'static [u8]),
    /// It stands there twice.
    Twice(&'static [u8]),
    /// It is not there.
    Without(&'static [u8]),
    /// The key may be used for these purposes only.
    For(&'static [&'static [u8]]),
    /// Names of hosts among the other names; none is the host's own.
    Hosts(&'static [&'static str]),
    /// The version, with the extensions or without.
    Version(u8, bool),
    Expired,
    Future,
    /// Its own name or its issuer's is written as another type of string, in other letters.
    SubjectAs(u8),
    IssuerAs(u8),
}

use Change::{Expired, For, Future, Hosts, IssuerAs, Set, SubjectAs, Twice, Version, Without};

const SERVER: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 3, 1];
const CLIENT: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 3, 2];
const CODE: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 3, 3];
const MAIL: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 3, 4];
const OCSP: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 3, 9];
const ANY: &[u8] = &[0x55, 0x1d, 37, 0];
const MICROSOFT: &[u8] = &[0x2b, 6, 1, 4, 1, 0x82, 0x37, 10, 3, 3];
const STEP_UP: &[u8] = &[0x60, 0x86, 0x48, 0x01, 0x86, 0xf8, 0x42, 4, 1];

pub const CHANGES: &[Change] = &[
    Without(BASIC),
    Without(USAGE),
    Twice(BASIC),
    Set(BASIC, true, &CA),
    Set(BASIC, false, &CA),
    Set(BASIC, true, &EMPTY),
    Set(BASIC, true, &[0x30, 6, 1, 1, 0xff, 2, 1, 0]),
    Set(BASIC, true, &[0x30, 6, 1, 1, 0xff, 2, 1, 1]),
    Set(BASIC, true, &[0x30, 9, 1, 1, 0xff, 2, 4, 0x7f, 0, 0, 0]),
    Set(BASIC, true, &[0x30, 3, 2, 1, 0]),
    Set(BASIC, true, &[0x30, 6, 1, 1, 0xff, 2, 1, 0xff]),
    Set(BASIC, true, &[0x30, 3, 4, 1, 0]),
    // Each use of a key alone, none, all, and some.
    Set(USAGE, true, &[3, 2, 7, 0x80]),
    Set(USAGE, true, &[3, 2, 6, 0x40]),
    Set(USAGE, true, &[3, 2, 5, 0x20]),
    Set(USAGE, true, &[3, 2, 4, 0x10]),
    Set(USAGE, true, &[3, 2, 3, 0x08]),
    Set(USAGE, true, &[3, 2, 2, 0x04]),
    Set(USAGE, true, &[3, 2, 1, 0x02]),
    Set(USAGE, true, &[3, 2, 0, 0x01]),
    Set(USAGE, true, &[3, 3, 7, 0, 0x80]),
    Set(USAGE, false, &[3, 2, 2, 0x04]),
    Set(USAGE, false, &[3, 2, 4, 0x10]),
    Set(USAGE, true, &[3, 1, 0]),
    Set(USAGE, true, &[3, 2, 7, 0x7f]),
    Set(USAGE, true, &[3, 3, 7, 0xff, 0x80]),
    Set(USAGE, true, &[3, 2, 2, 0x84]),
    Set(USAGE, true, &[3, 2, 9, 0x80]),
    Set(USAGE, true, &[4, 1, 0x80]),
    Twice(USAGE),
    For(&[CLIENT]),
    For(&[SERVER]),
    For(&[CLIENT, SERVER]),
    For(&[ANY]),
    For(&[CODE]),
    For(&[MAIL]),
    For(&[OCSP]),
    For(&[MICROSOFT]),
    For(&[STEP_UP]),
    For(&[ANY, CLIENT]),
    For(&[&[0x2a, 3]]),
    For(&[]),
    Set(PURPOSES, true, &[0x30, 2, 5, 0]),
    Twice(PURPOSES),
    Set(NETSCAPE, false, &[3, 2, 7, 0x80]),
    Set(NETSCAPE, false, &[3, 2, 6, 0x40]),
    Set(NETSCAPE, true, &[3, 2, 6, 0xc0]),
    Set(NETSCAPE, false, &[3, 2, 5, 0x20]),
    Set(NETSCAPE, false, &[3, 2, 2, 0x04]),
    Set(NETSCAPE, false, &[3, 2, 1, 0x02]),
    Set(NETSCAPE, true, &[3, 2, 0, 0x07]),
    Set(NETSCAPE, false, &[3, 1, 0]),
    Set(NETSCAPE, false, &[5, 0]),
    // Permitted: the host `a`.
    Set(NAME_CONSTRAINTS, true, &[0x30, 7, 0xa0, 5, 0x30, 3, 0x82, 1, b'a']),
    Set(NAME_CONSTRAINTS, false, &[5, 0]),
    Set(POLICIES, true, &[0x30, 8, 0x30, 6, 6, 4, 0x55, 0x1d, 32, 0]),
    Set(POLICIES, true, &[5, 0]),
    Set(MAPPINGS, true, &EMPTY),
    Set(POLICY_CONSTRAINTS, true, &[0x30, 3, 0x80, 1, 0]),
    Set(ANY_POLICY, true, &[2, 1, 0]),
    Set(KEY_ID, false, &[4, 1, 1]),
    Set(KEY_ID, false, &[4, 1, 2]),
    Set(KEY_ID, true, &[4, 1, 1]),
    Set(KEY_ID, false, &[5, 0]),
    Twice(KEY_ID),
    Set(ISSUER_KEY, false, &[0x30, 3, 0x80, 1, 1]),
    Set(ISSUER_KEY, false, &[0x30, 3, 0x80, 1, 2]),
    Set(ISSUER_KEY, true, &[0x30, 3, 0x80, 1, 1]),
    Set(ISSUER_KEY, false, &[0x30, 3, 0x82, 1, 1]),
    Set(ISSUER_KEY, false, &[0x30, 3, 0x82, 1, 9]),
    // The issuer's issuer is called `a`.
    Set(
        ISSUER_KEY,
        false,
        &[
            0x30, 18, 0xa1, 16, 0xa4, 14, 0x30, 12, 0x31, 10, 0x30, 8, 6, 3, 0x55, 4, 3, 0x0c, 1,
            b'a',
        ],
    ),
    Set(ISSUER_KEY, false, &EMPTY),
    Set(ISSUER_KEY, false, &[5, 0]),
    Hosts(&[""]),
    Hosts(&["other.test"]),
    Hosts(&["other.test", ""]),
    Hosts(&["*.test"]),
    Set(ALT_NAMES, false, &[0x30, 6, 0x87, 4, 127, 0, 0, 1]),
    Set(ALT_NAMES, true, &[0x30, 3, 0x81, 1, b'a']),
    Set(ALT_NAMES, true, &[0x30, 3, 0x86, 1, b'a']),
    Set(ALT_NAMES, false, &EMPTY),
    Set(ALT_NAMES, false, &[0x30, 3, 0x8f, 1, b'a']),
    Set(ALT_NAMES, false, &[5, 0]),
    Set(ISSUER_NAMES, true, &[0x30, 3, 0x82, 1, b'a']),
    Set(LISTS, true, &[0x30, 11, 0x30, 9, 0xa0, 7, 0xa0, 5, 0x86, 3, b'a', b':', b'b']),
    Set(LISTS, false, &[0x30, 2, 0x30, 0]),
    Set(LISTS, false, &[5, 0]),
    Set(PLACES, true, &EMPTY),
    Set(PLACES, false, &[5, 0]),
    Set(ADDRESSES, true, &[0x30, 8, 0x30, 6, 4, 2, 0, 1, 5, 0]),
    Set(PROXY, true, &[0x30, 12, 0x30, 10, 6, 8, 0x2b, 6, 1, 5, 5, 7, 21, 1]),
    Set(NO_CHECK, true, &[5, 0]),
    Set(UNKNOWN, true, &[5, 0]),
    Set(UNKNOWN, false, &[5, 0]),
    Version(1, false),
    Version(1, true),
    Version(2, true),
    Expired,
    Future,
    SubjectAs(PRINTABLE),
    IssuerAs(PRINTABLE),
    SubjectAs(0x16),
];

impl Change {
    pub fn apply(self, draft: &mut Draft, names: [&str; 2]) {
        match self {
            Set(oid, critical, value) => draft.set(oid, critical, value),
            Twice(oid) => {
                let known = draft.extensions.iter().find(|(known, ..)| known == oid);
                let value = known.map_or(EMPTY.to_vec(), |(.., value)| value.clone());
                draft.set(oid, false, &value);
                draft.add(oid, false, &value);
            }
            Without(oid) => draft.remove(oid),
            For(purposes) => {
                let list: Vec<u8> = purposes.iter().flat_map(|oid| der(6, &[oid])).collect();
                draft.set(PURPOSES, false, &der(SEQUENCE, &[&list]));
            }
            Hosts(hosts) => {
                let host = |host: &&str| if host.is_empty() { names[0] } else { *host }.to_owned();
                let list = hosts.iter().flat_map(|name| der(0x82, &[host(name).as_bytes()]));
                let list: Vec<u8> = list.collect();
                draft.set(ALT_NAMES, false, &der(SEQUENCE, &[&list]));
            }
            Version(version, with) => {
                draft.version = version;
                draft.extensions.retain(|_| with);
            }
            Expired => draft.to = b"210101000000Z",
            Future => draft.from = b"480101000000Z",
            SubjectAs(tag) => draft.subject = name(tag, &names[0].to_uppercase()),
            IssuerAs(tag) => draft.issuer = name(tag, &format!(" {}", names[1].to_uppercase())),
        }
    }
}

//! Header fields and the names that the server acts on.

use crate::Span;

/// A field line: the positions of its name and value, and the known name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeaderLine {
    /// The name as sent, without the colon.
    pub name: Span,
    /// The value without the spaces around it.
    pub value: Span,
    /// The name, if it is a known one.
    pub id: HeaderId,
}

macro_rules! header_ids {
    ($($id:ident $name:literal),* $(,)?) => {
        /// A known header name, recognised without regard to case.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum HeaderId {
            $(#[doc = concat!("`", $name, "`")] $id,)*
            /// Any other name.
            #[default]
            Other,
        }

        /// Every known name, at the index of its `HeaderId`.
        const KNOWN: &[(&str, HeaderId)] = &[$(($name, HeaderId::$id),)*];
    };
}

header_ids! {
    Accept "Accept",
    AcceptEncoding "Accept-Encoding",
    AcceptLanguage "Accept-Language",
    AcceptRanges "Accept-Ranges",
    Authorization "Authorization",
    CacheControl "Cache-Control",
    Connection "Connection",
    ContentDisposition "Content-Disposition",
    ContentEncoding "Content-Encoding",
    ContentLength "Content-Length",
    ContentRange "Content-Range",
    ContentType "Content-Type",
    Cookie "Cookie",
    Date "Date",
    Depth "Depth",
    Destination "Destination",
    ETag "ETag",
    Expect "Expect",
    Expires "Expires",
    Host "Host",
    IfMatch "If-Match",
    IfModifiedSince "If-Modified-Since",
    IfNoneMatch "If-None-Match",
    IfRange "If-Range",
    IfUnmodifiedSince "If-Unmodified-Since",
    KeepAlive "Keep-Alive",
    LastModified "Last-Modified",
    Link "Link",
    Location "Location",
    Overwrite "Overwrite",
    Pragma "Pragma",
    ProxyAuthenticate "Proxy-Authenticate",
    ProxyAuthorization "Proxy-Authorization",
    ProxyConnection "Proxy-Connection",
    Range "Range",
    Referer "Referer",
    Refresh "Refresh",
    Server "Server",
    SetCookie "Set-Cookie",
    Status "Status",
    Te "TE",
    Trailer "Trailer",
    TransferEncoding "Transfer-Encoding",
    Upgrade "Upgrade",
    UserAgent "User-Agent",
    Vary "Vary",
    Via "Via",
    WwwAuthenticate "WWW-Authenticate",
    XAccelBuffering "X-Accel-Buffering",
    XAccelCharset "X-Accel-Charset",
    XAccelExpires "X-Accel-Expires",
    XAccelLimitRate "X-Accel-Limit-Rate",
    XAccelRedirect "X-Accel-Redirect",
    XForwardedFor "X-Forwarded-For",
    XPad "X-Pad",
    XRealIp "X-Real-IP",
}

impl HeaderId {
    /// Recognises a name in any case.
    #[inline]
    pub fn from_name(name: &[u8]) -> HeaderId {
        let (Some(&first), Some(&last)) = (name.first(), name.last()) else {
            return HeaderId::Other;
        };
        let Some(&index) = SLOTS.get(slot(MULTIPLIER, name.len(), first, last)) else {
            return HeaderId::Other;
        };
        match KNOWN.get(index as usize) {
            // nearly all clients use the usual spelling
            Some(&(known, id)) if known.as_bytes() == name => id,
            Some(&(known, id)) if known.as_bytes().eq_ignore_ascii_case(name) => id,
            _ => HeaderId::Other,
        }
    }

    /// The name in its usual spelling. Empty for [`HeaderId::Other`].
    pub fn name(self) -> &'static str {
        KNOWN.get(self as usize).map_or("", |&(name, _)| name)
    }

    /// This name's bit in a set of names.
    #[inline]
    pub(super) fn bit(self) -> u64 {
        1 << self as u32
    }

    /// Whether a second line of this name makes a request invalid for nginx.
    #[inline]
    pub(super) fn unique(self) -> bool {
        use HeaderId::*;
        matches!(
            self,
            Authorization
                | ContentLength
                | ContentRange
                | Expect
                | Host
                | IfMatch
                | IfModifiedSince
                | IfNoneMatch
                | IfRange
                | IfUnmodifiedSince
                | ProxyAuthorization
                | TransferEncoding
        )
    }
}

// Length, first byte and last byte differ between all known names, so one multiplication finds the
// only candidate. The multiplier must leave no two names in one slot; it is searched at compile
// time.

const SLOT_BITS: u32 = 9;
const EMPTY: u8 = u8::MAX;
const MULTIPLIER: u32 = find_multiplier();
static SLOTS: [u8; 1 << SLOT_BITS] = match fill(MULTIPLIER) {
    Some(slots) => slots,
    None => panic!("two known header names share a slot"),
};

const _: () = assert!(KNOWN.len() < 64, "a set of names is a u64");

#[inline]
const fn slot(multiplier: u32, len: usize, first: u8, last: u8) -> usize {
    let key = (len as u32 & 0xff) << 16 | ((first | 0x20) as u32) << 8 | (last | 0x20) as u32;
    (key.wrapping_mul(multiplier) >> (32 - SLOT_BITS)) as usize
}

const fn fill(multiplier: u32) -> Option<[u8; 1 << SLOT_BITS]> {
    let mut slots = [EMPTY; 1 << SLOT_BITS];
    let mut index = 0;
    while index < KNOWN.len() {
        let name = KNOWN[index].0.as_bytes();
        let at = slot(multiplier, name.len(), name[0], name[name.len() - 1]);
        if slots[at] != EMPTY {
            return None;
        }
        slots[at] = index as u8;
        index += 1;
    }
    Some(slots)
}

const fn find_multiplier() -> u32 {
    let mut candidate: u32 = 0x9e37_79b1;
    while fill(candidate).is_none() {
        candidate = candidate.wrapping_mul(0x0019_660d).wrapping_add(0x3c6e_f35f) | 1;
    }
    candidate
}

//! Optional parts of a configuration, and the requests that use them.

use weir_testkit::{Dice, number};

/// The optional parts of a course.
#[derive(Clone, Copy, Debug, Default)]
pub struct Extras {
    /// Clients request ranges of cached answers.
    pub ranged: bool,
    /// `slice`.
    pub sliced: bool,
    /// `proxy_store`.
    pub stored: bool,
    /// `mirror`.
    pub mirrored: bool,
    /// `auth_request`.
    pub guarded: bool,
    /// Clients accept compressed answers.
    pub zipped: bool,
    /// Objects are cached by RFC 9111.
    pub standard: bool,
    /// Many clients request few cached objects, and nothing else.
    pub caching: bool,
}

/// The number of objects that are cached in slices.
pub const SLICED: u64 = 5;

pub fn sliced_len(name: u64) -> u64 {
    [1, 10_000, 65_536, 65_537, 300_000][name as usize % 5]
}

/// The name of a sliced object among the cached ones.
pub fn sliced_name(name: u64) -> u64 {
    100 + name
}

impl Extras {
    pub fn draw(seed: u64) -> Extras {
        let caching = Dice::salted(seed, "caching").one_in(8) || number("WEIR_CACHING").is_some();
        let mut dice = Dice::salted(seed, "extras");
        let mut some = || dice.one_in(3);
        let drawn = Extras {
            ranged: some(),
            sliced: some(),
            stored: some(),
            mirrored: some(),
            guarded: some(),
            zipped: some(),
            standard: some(),
            caching: false,
        };
        // A course about caches has no other parts, since it would take long.
        let about_caches =
            Extras { ranged: drawn.ranged, standard: true, caching, ..Extras::default() };
        if caching { about_caches } else { drawn }
    }

    /// Directives for `http`, for the locations without and with request bodies, and further
    /// locations.
    pub fn lines(self, d: &mut Dice, home: &str, scheme: &str) -> (String, String, String, String) {
        let (mut http, mut asked, mut sent) = (String::new(), String::new(), String::new());
        let mut locations = String::new();
        let mut location = |name: &str, lines: String| {
            locations.push_str(&format!("        location {name} {{ {lines} }}\n"));
        };
        if self.zipped {
            let length = d.pick(&["0", "20", "5000"]);
            let buffers = d.pick(&["2 1k", "32 4k", "16 8k"]);
            http = format!(
                "    gzip on; gzip_types *; gzip_proxied any; gzip_min_length {length};
    gzip_buffers {buffers}; gzip_comp_level {};
",
                d.pick(&["1", "6"]),
            );
        }
        if self.mirrored {
            let body = d.pick(&["on", "off"]);
            asked.push_str("mirror /m; ");
            if d.one_in(2) {
                sent.push_str(&format!("mirror /m; mirror_request_body {body}; "));
            }
            location(
                "= /m",
                format!("internal; client_max_body_size 0; proxy_pass {scheme}://u/m$request_uri;"),
            );
        }
        if self.guarded {
            sent.push_str("auth_request /a; ");
            if d.one_in(2) {
                asked.push_str("auth_request /a; ");
            }
            let lines = "internal; client_max_body_size 0; proxy_pass_request_body off; proxy_set_header Connection \"\"; \
                         proxy_set_header Content-Length \"\"; proxy_pass";
            location("= /a", format!("{lines} {scheme}://u/a$request_uri;"));
        }
        if self.stored {
            location("/t/", format!("proxy_store {home}/store$uri; proxy_pass {scheme}://u;"));
        }
        if self.sliced {
            let size = d.pick(&["1k", "10k", "64k", "1m"]);
            let lock = d.pick(&["on", "off"]);
            location(
                "/x/",
                format!(
                    "slice {size}; proxy_cache c; proxy_cache_key $uri$slice_range; \
                     proxy_set_header Range $slice_range; proxy_set_header Connection \"\"; \
                     proxy_cache_valid 200 206 10s; proxy_cache_lock {lock}; \
                     proxy_pass {scheme}://u;"
                ),
            );
        }
        (http, asked, sent, locations)
    }
}

/// The first and the last byte of a simple `Range` in a body of this length.
pub fn range(text: &str, len: u64) -> Option<(u64, u64)> {
    let (from, to) = text.strip_prefix("bytes=")?.split_once('-')?;
    let (from, to) = (from.parse().ok()?, to.parse().unwrap_or(u64::MAX));
    Some((from, len.saturating_sub(1).min(to)))
}

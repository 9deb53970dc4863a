//! Seeded requests: usual ones, odd ones, broken ones.

use weir_testkit::Dice;

/// An endless sequence that a seed and a site's name determine.
pub struct Requests {
    dice: Dice,
    paths: &'static [&'static str],
}

const STATIC: &[&str] = &[
    "/",
    "/index.html",
    "/long.txt",
    "/exact.txt",
    "/empty.txt",
    "/data.json",
    "/dir",
    "/dir/",
    "/dir/file.txt",
    "/noindex/",
    "/noindex",
    "/missing",
    "/alias/file.txt",
    "/alias/",
    "/alias",
    "/try/there.txt",
    "/try/none",
    "/try/",
    "/no-etag/long.txt",
    "/before/long.txt",
    "/sp%20ace.txt",
    "/.hidden",
    "/long.txt/",
    "/long.txt/more",
];
const REWRITE: &[&str] = &[
    "/",
    "/old/x",
    "/old/",
    "/moved/a/b",
    "/new/x.php",
    "/new/x",
    "/php",
    "/if",
    "/set",
    "/re/abc/12",
    "/re/Abc/12",
    "/loop",
    "/away",
    "/abs/x",
    "/old/a.php",
];
const ERRORS: &[&str] = &[
    "/missing",
    "/404.html",
    "/gone",
    "/deny",
    "/deny/x",
    "/teapot",
    "/status/400",
    "/status/500",
    "/status/503",
    "/status/301",
    "/internal",
    "/away/x",
    "/headers",
    "/",
    "/index.html",
];
const BODIES: &[&str] = &[
    "/",
    "/x",
    "/pass",
    "/pass/a%20b",
    "/pass/404",
    "/pass/redirect",
    "/pass/uri/x",
    "/pass/uri/a%2Fb/../c",
    "/unbuffered",
    "/unbuffered/x",
];

impl Requests {
    /// The sequence of a site.
    pub fn new(seed: u64, site: &str) -> Requests {
        let paths = match site {
            "static" => STATIC,
            "rewrite" => REWRITE,
            "errors" => ERRORS,
            _ => BODIES,
        };
        Requests { dice: Dice::salted(seed, site), paths }
    }

    /// The next one: bytes for one connection. The last of its requests asks to close it.
    pub fn next(&mut self) -> Vec<u8> {
        match self.dice.below(20) {
            0 => self.broken(),
            1 | 2 => {
                let mut bytes = Vec::new();
                for _ in 0..self.dice.below(3) + 1 {
                    bytes.extend(self.usual(false));
                }
                bytes.extend(self.usual(true));
                bytes
            }
            _ => self.usual(true),
        }
    }

    fn path(&mut self) -> String {
        let path = self.dice.pick(self.paths);
        let path = match self.dice.below(10) {
            0 => format!("/.{path}"),
            1 => format!("/x/..{path}"),
            2 => format!("/{path}"),
            3 => path.replace('e', "%65"),
            4 => format!("{path}%2e"),
            _ => path.to_owned(),
        };
        let query = self.dice.pick(&[
            "",
            "",
            "",
            "?",
            "?a=1",
            "?a=1&b=2",
            "?b=%20x&a=y",
            "?x?y",
            "?a=%2F..#f",
            "#frag",
        ]);
        path + query
    }

    fn usual(&mut self, last: bool) -> Vec<u8> {
        let method = self.dice.pick(&[
            "GET", "GET", "GET", "GET", "HEAD", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH",
        ]);
        let path = self.path();
        let version = self.dice.pick(&["1.1", "1.1", "1.1", "1.1", "1.0"]);
        let host = self.dice.pick(&[
            "localhost",
            "localhost",
            "localhost",
            "LocalHost:80",
            "other.example",
            "a.wild.example",
            "nobody.",
        ]);
        let mut head = format!("{method} {path} HTTP/{version}\r\nHost: {host}\r\n");
        for _ in 0..self.dice.below(3) {
            let header = self.header();
            // `$http_x` joins the values of several lines only since nginx 1.23.
            if !header.starts_with("X:") || !head.contains("\r\nX:") {
                head += header;
            }
        }
        let mut body = Vec::new();
        if matches!(method, "POST" | "PUT" | "PATCH") {
            self.body(version, &mut head, &mut body);
        }
        let end = if last { "close" } else { "keep-alive" };
        head += &format!("Connection: {end}\r\n\r\n");
        let mut bytes = head.into_bytes();
        bytes.extend(body);
        bytes
    }

    fn header(&mut self) -> &'static str {
        self.dice.pick(&[
            "X: Yz\r\n",
            "X: one\r\n",
            "Range: bytes=0-9\r\n",
            "Range: bytes=5-\r\n",
            "Range: bytes=-7\r\n",
            "Range: bytes=0-0,3-5\r\n",
            "Range: bytes=9999-\r\n",
            "Range: bytes=5-2\r\n",
            "Range: items=0-1\r\n",
            "If-Modified-Since: Sun, 13 Sep 2020 12:26:40 GMT\r\n",
            "If-Modified-Since: Mon, 14 Sep 2020 12:26:40 GMT\r\n",
            "If-Unmodified-Since: Sat, 12 Sep 2020 12:26:40 GMT\r\n",
            "If-None-Match: \"5f5e1000-7d0\"\r\n",
            "If-None-Match: *\r\n",
            "If-None-Match: W/\"5f5e1000-7d0\", \"x\"\r\n",
            "If-Match: \"nothing\"\r\n",
            "If-Range: \"5f5e1000-7d0\"\r\nRange: bytes=1-3\r\n",
            "If-Range: \"other\"\r\nRange: bytes=1-3\r\n",
            "Accept-Encoding: gzip\r\n",
            "Content-Type: text/x; charset=y\r\n",
            "X_Under: dropped\r\n",
            "Expect: 100-continue\r\n",
            "Cookie: a=b; c=d\r\n",
        ])
    }

    fn body(&mut self, version: &str, head: &mut String, body: &mut Vec<u8>) {
        let size = self.dice.pick(&[0, 1, 10, 299, 300, 301, 1000]);
        let text = vec![b'z'; size];
        if version == "1.1" && self.dice.below(2) == 0 {
            *head += "Transfer-Encoding: chunked\r\n";
            for piece in text.chunks(self.dice.below(200) + 1) {
                body.extend(format!("{:x}\r\n", piece.len()).bytes());
                body.extend(piece);
                body.extend(b"\r\n");
            }
            body.extend(b"0\r\n\r\n");
        } else {
            *head += &format!("Content-Length: {size}\r\n");
            body.extend(text);
        }
    }

    fn broken(&mut self) -> Vec<u8> {
        let rest = "Host: localhost\r\nConnection: close\r\n\r\n";
        match self.dice.below(18) {
            0 => format!("get / HTTP/1.1\r\n{rest}"),
            1 => format!("GET  / HTTP/1.1\r\n{rest}"),
            2 => format!("GET / HTTP/2.0\r\n{rest}"),
            3 => format!("GET / HTTP/1.1 \r\n{rest}"),
            4 => "GET / HTTP/1.1\r\nConnection: close\r\n\r\n".to_owned(),
            5 => format!("GET / HTTP/1.1\r\nHost: a\r\n{rest}"),
            6 => format!("GET /%00 HTTP/1.1\r\n{rest}"),
            7 => format!("GET /%zz HTTP/1.1\r\n{rest}"),
            8 => format!("GET /../x HTTP/1.1\r\n{rest}"),
            9 => format!("POST / HTTP/1.1\r\nContent-Length: x\r\n{rest}"),
            10 => format!(
                "POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n{rest}"
            ),
            11 => format!("POST / HTTP/1.1\r\nTransfer-Encoding: gzip\r\n{rest}"),
            12 => format!("TRACE / HTTP/1.1\r\n{rest}"),
            13 => "GET /\r\n".to_owned(),
            14 => format!("GET / HTTP/1.1\r\n Folded: x\r\n{rest}"),
            15 => format!("GET /{} HTTP/1.1\r\n{rest}", "a".repeat(9000)),
            16 => format!("GET / HTTP/1.1\r\nX: {}\r\n{rest}", "b".repeat(40_000)),
            _ => format!("GET http://localhost/index.html?q HTTP/1.1\r\n{rest}"),
        }
        .into_bytes()
    }
}

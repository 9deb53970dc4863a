//! The cases and their rules.

use std::fmt::Write as _;

use weir_testkit::Dice;

use crate::PIECES;
use crate::origin::Origins;

/// How the client speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wire {
    Http10,
    Http11,
    /// A connection that has had a request before.
    Kept,
    Tls,
    Http2,
    Http2Tls,
}

impl Wire {
    pub fn is_http2(self) -> bool {
        matches!(self, Wire::Http2 | Wire::Http2Tls)
    }

    pub fn is_tls(self) -> bool {
        matches!(self, Wire::Tls | Wire::Http2Tls)
    }
}

/// How the server behind is spoken to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Out {
    Proxy10,
    Proxy11,
    Proxy2,
    Fastcgi,
    Uwsgi,
    Scgi,
    Grpc,
    Memcached,
    /// CONNECT.
    Connect,
    Stream,
}

/// Where the body of an answer ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framing {
    /// Chunks, or frames: the protocol's own.
    Pieces,
    Length,
    Close,
}

/// What is in pieces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// The answer.
    Down,
    /// The request's body, with its length.
    Up,
    /// The request's body, in chunks or frames.
    UpChunked,
    /// Both at once: each piece of the body is answered by one of the answer.
    Turns,
    /// Both, by turns, after an upgrade.
    Tunnel,
}

/// What one end does before it waits for the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// An answer 103.
    Hints,
    /// The head, of the request or the answer.
    Head,
    /// A piece, from 0 on.
    Piece(usize),
}

/// The part of the configuration that gives the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// It is the client's answer.
    Itself,
    /// It is included in a page.
    Included,
    /// It is put behind a page.
    Added,
}

/// Whether the server's answer is gathered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Buffering {
    On,
    Off,
    /// The server says so.
    ByServer,
}

/// A setting that must not change when bytes arrive, unless a rule says so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Setting {
    Gzip,
    Sub,
    Ssi,
    AddBefore,
    AddAfter,
    Auth,
    Mirror,
    Charset,
    Gunzip,
    ForceRanges,
    NoChunks,
    PostponeNothing,
    PostponeMuch,
    Nopush,
    NoNodelay,
    LimitRate,
    UpstreamRate,
    Store,
    Cache,
    CacheLocked,
    IgnoreAbort,
    EarlyHints,
}

const SETTINGS: [Setting; 22] = [
    Setting::Gzip,
    Setting::Sub,
    Setting::Ssi,
    Setting::AddBefore,
    Setting::AddAfter,
    Setting::Auth,
    Setting::Mirror,
    Setting::Charset,
    Setting::Gunzip,
    Setting::ForceRanges,
    Setting::NoChunks,
    Setting::PostponeNothing,
    Setting::PostponeMuch,
    Setting::Nopush,
    Setting::NoNodelay,
    Setting::LimitRate,
    Setting::UpstreamRate,
    Setting::Store,
    Setting::Cache,
    Setting::CacheLocked,
    Setting::IgnoreAbort,
    Setting::EarlyHints,
];

/// One request, and all that it goes through.
#[derive(Debug, Clone)]
pub struct Case {
    pub wire: Wire,
    pub out: Out,
    pub framing: Framing,
    pub way: Way,
    pub place: Place,
    pub buffering: Buffering,
    pub settings: Vec<Setting>,
    /// `..._request_buffering off`.
    pub streams: bool,
    /// The server behind is spoken to within TLS.
    pub secured: bool,
    /// The head comes before the first piece, not with it.
    pub head_alone: bool,
    /// Bytes of a piece.
    pub size: usize,
}

impl Case {
    pub fn draw(dice: &mut Dice) -> Case {
        use Wire::{Http2, Http2Tls, Http10, Http11, Kept, Tls};
        let out = dice.pick(&[
            Out::Proxy11,
            Out::Proxy11,
            Out::Proxy11,
            Out::Proxy10,
            Out::Proxy2,
            Out::Proxy2,
            Out::Fastcgi,
            Out::Uwsgi,
            Out::Scgi,
            Out::Grpc,
            Out::Memcached,
            Out::Connect,
            Out::Stream,
        ]);
        let mut wire = dice.pick(&[Http10, Http11, Kept, Tls, Http2, Http2Tls]);
        let mut framing =
            dice.pick(&[Framing::Pieces, Framing::Pieces, Framing::Length, Framing::Close]);
        let mut way =
            dice.pick(&[Way::Down, Way::Down, Way::Up, Way::UpChunked, Way::Turns, Way::Tunnel]);
        let mut place = dice.pick(&[Place::Itself, Place::Itself, Place::Included, Place::Added]);
        let mut buffering =
            dice.pick(&[Buffering::On, Buffering::On, Buffering::Off, Buffering::ByServer]);
        let mut settings: Vec<Setting> = Vec::new();
        for _ in 0..dice.below(4) {
            let setting = dice.pick(&SETTINGS);
            if !settings.iter().any(|other| excludes(*other, setting)) {
                settings.push(setting);
            }
        }
        match out {
            Out::Grpc => {
                wire = dice.pick(&[Http2, Http2Tls]);
                (framing, place, buffering) = (Framing::Pieces, Place::Itself, Buffering::Off);
                settings.retain(|s| !s.is_about_storing() && *s != Setting::UpstreamRate);
            }
            Out::Memcached => {
                (framing, way, buffering) = (Framing::Length, Way::Down, Buffering::Off);
                settings.retain(|s| !s.is_of_passing());
            }
            Out::Connect | Out::Stream => {
                wire = dice.pick(&[Http11, Tls]);
                (framing, place, way) = (Framing::Close, Place::Itself, Way::Tunnel);
                settings.clear();
            }
            Out::Fastcgi if framing == Framing::Close => framing = Framing::Pieces,
            Out::Proxy2 if framing == Framing::Close => framing = Framing::Pieces,
            Out::Uwsgi | Out::Scgi if framing == Framing::Pieces => framing = Framing::Close,
            _ => {}
        }
        if settings.contains(&Setting::Gunzip) {
            // The parts of an answer would be compressed one by one.
            settings.retain(|s| *s != Setting::Gzip);
        }
        let is_proxy1 = matches!(out, Out::Proxy10 | Out::Proxy11);
        way = match way {
            Way::Tunnel if matches!(out, Out::Connect | Out::Stream) => way,
            Way::Tunnel if wire.is_http2() || wire == Wire::Http10 || !is_proxy1 => Way::Down,
            Way::UpChunked if wire == Wire::Http10 => Way::Up,
            // A server of HTTP/1 has all of the body before it answers.
            Way::Turns if !matches!(out, Out::Grpc | Out::Proxy2) => Way::Down,
            Way::Turns if !wire.is_http2() => Way::Up,
            way => way,
        };
        if way != Way::Down {
            place = Place::Itself;
            settings.retain(|s| {
                let is_of_answers = [Setting::Mirror, Setting::EarlyHints].contains(s);
                !s.is_about_storing() && !is_of_answers
            });
        }
        let can_be_secured = is_proxy1 || matches!(out, Out::Proxy2 | Out::Grpc | Out::Uwsgi);
        Case {
            wire,
            out,
            framing,
            way,
            place,
            buffering,
            settings,
            streams: way == Way::Turns || dice.one_in(2),
            secured: can_be_secured && dice.one_in(4),
            head_alone: !matches!(out, Out::Connect | Out::Stream | Out::Memcached)
                && dice.one_in(2),
            size: dice.pick(&[10, 10, 300, 1000]),
        }
    }

    pub fn has(&self, setting: Setting) -> bool {
        self.settings.contains(&setting)
    }

    /// Whether the client sends a body.
    pub fn has_body(&self) -> bool {
        matches!(self.way, Way::Up | Way::UpChunked | Way::Turns)
    }

    /// Whether the pieces are those of the request alone.
    pub fn is_up(&self) -> bool {
        matches!(self.way, Way::Up | Way::UpChunked)
    }

    /// Whether the server's body is compressed.
    pub fn is_coded(&self) -> bool {
        self.has(Setting::Gunzip) && self.way == Way::Down && self.out != Out::Memcached
    }

    /// A second client asks for what is about to be stored.
    pub fn is_followed(&self) -> bool {
        self.has(Setting::CacheLocked)
    }

    /// What is done in turns, in order.
    pub fn steps(&self) -> Vec<Step> {
        let can_hint = matches!(self.out, Out::Proxy10 | Out::Proxy11 | Out::Proxy2 | Out::Grpc);
        let hints = self.has(Setting::EarlyHints) && can_hint && self.way == Way::Down;
        let head = self.is_up() || self.head_alone && self.way != Way::Turns;
        let mut steps = Vec::new();
        steps.extend(hints.then_some(Step::Hints));
        steps.extend(head.then_some(Step::Head));
        steps.extend((0..PIECES).map(Step::Piece));
        steps
    }

    /// Whether a step must be passed on before more comes.
    pub fn passes(&self, step: Step) -> bool {
        match (self.way, step) {
            (Way::Tunnel, _) => true,
            (Way::Turns, _) => self.passes_pieces(),
            (Way::Down, Step::Hints) => self.wire != Wire::Http10 && self.place == Place::Itself,
            (Way::Down, Step::Head) => self.passes_head(),
            (Way::Down, Step::Piece(n)) => {
                // The last piece ends a body of known length; of FastCGI and HTTP/2, a record or frame behind it.
                let is_end = n + 1 == PIECES && self.framing == Framing::Length;
                let ends_by_record = matches!(self.out, Out::Fastcgi | Out::Proxy2);
                self.passes_pieces() || is_end && !ends_by_record
            }
            (_, Step::Piece(n)) if n + 1 == PIECES => true,
            _ => self.passes_body(),
        }
    }

    /// The rule: pieces that the server made, chunks or frames of HTTP/2, go on as they come; of other bodies only where
    /// nothing is gathered. gzip gathers as well, unless it is told not to.
    fn passes_pieces(&self) -> bool {
        if self.is_unbuffered() {
            return true;
        }
        let framed = match self.out {
            Out::Proxy10 | Out::Proxy11 => self.framing == Framing::Pieces,
            Out::Proxy2 | Out::Grpc => true,
            _ => false,
        };
        // Nothing is compressed for clients of HTTP/1.0, nor within another answer.
        let compressed =
            self.has(Setting::Gzip) && self.wire != Wire::Http10 && self.place == Place::Itself;
        framed && !compressed
    }

    /// A body goes on as it comes where it is not gathered, and where its length is known or need not be.
    fn passes_body(&self) -> bool {
        let needs_length = matches!(self.out, Out::Proxy10 | Out::Uwsgi | Out::Scgi);
        let streams = self.out == Out::Grpc || self.streams;
        streams && !(self.way == Way::UpChunked && needs_length)
    }

    /// A head without a body waits for the first of it, but where nothing is gathered, and over HTTP/2.
    fn passes_head(&self) -> bool {
        let goes_alone = self.wire.is_http2()
            || self.place == Place::Itself && self.has(Setting::PostponeNothing);
        self.head_alone && (self.is_unbuffered() || goes_alone)
    }

    pub fn is_unbuffered(&self) -> bool {
        matches!(self.out, Out::Grpc | Out::Memcached) || self.buffering != Buffering::On
    }

    /// What stands in the location that passes on.
    pub fn text(&self, origins: &Origins) -> String {
        let pass = match self.out {
            Out::Fastcgi => "fastcgi",
            Out::Uwsgi => "uwsgi",
            Out::Scgi => "scgi",
            Out::Grpc => "grpc",
            Out::Memcached => "memcached",
            _ => "proxy",
        };
        let mut out = String::new();
        let (tls, port) = match (self.secured, self.out) {
            (false, out) => ("", origins.port(out).to_string()),
            (true, Out::Uwsgi) => ("s", "%%PORT8%%".to_owned()),
            (true, Out::Proxy2 | Out::Grpc) => ("s", "%%PORT7%%".to_owned()),
            (true, _) => ("s", "%%PORT6%%".to_owned()),
        };
        let _ = match pass {
            "proxy" => {
                let version = match self.out {
                    Out::Proxy10 => "1.0",
                    Out::Proxy2 => "2",
                    _ => "1.1",
                };
                write!(
                    out,
                    "proxy_http_version {version}; proxy_set_header X-Run $request_uri;
                     proxy_pass http{tls}://127.0.0.1:{port};"
                )
            }
            "grpc" => {
                write!(
                    out,
                    "grpc_set_header X-Run $request_uri; grpc_pass grpc{tls}://127.0.0.1:{port};"
                )
            }
            "uwsgi" => write!(
                out,
                "uwsgi_param RUN $request_uri; uwsgi_pass {tls}uwsgi://127.0.0.1:{port};"
            ),
            "memcached" => {
                write!(out, "set $memcached_key $request_uri; memcached_pass 127.0.0.1:{port};")
            }
            _ => write!(out, "{pass}_param RUN $request_uri; {pass}_pass 127.0.0.1:{port};"),
        };
        if self.way == Way::Tunnel {
            out += " proxy_set_header Connection upgrade; proxy_set_header Upgrade x;";
        }
        let has_buffers = !matches!(pass, "grpc" | "memcached");
        if has_buffers && self.buffering == Buffering::Off {
            let _ = write!(out, " {pass}_buffering off;");
        }
        if has_buffers && self.streams {
            let _ = write!(out, " {pass}_request_buffering off;");
        }
        for setting in &self.settings {
            out.push(' ');
            out += &setting.text(pass);
        }
        out
    }
}

/// Cases that are drawn so seldom that most runs are without them.
pub fn failed_once() -> [Case; 1] {
    // The last of a stored answer with a length waited for the end of the stream.
    let last_of_a_length = Case {
        wire: Wire::Http11,
        out: Out::Proxy2,
        framing: Framing::Length,
        way: Way::Down,
        place: Place::Itself,
        buffering: Buffering::On,
        settings: vec![Setting::Cache],
        streams: false,
        secured: false,
        head_alone: false,
        size: 300,
    };
    [last_of_a_length]
}

/// Two settings that cannot stand in one location.
fn excludes(one: Setting, other: Setting) -> bool {
    let both = |is: fn(Setting) -> bool| is(one) && is(other);
    one == other || both(Setting::is_about_storing) || both(Setting::is_about_postponing)
}

impl Setting {
    fn is_about_storing(self) -> bool {
        matches!(self, Setting::Store | Setting::Cache | Setting::CacheLocked)
    }

    /// It has a prefix that not all protocols have.
    fn is_of_passing(self) -> bool {
        let others = [Setting::ForceRanges, Setting::UpstreamRate, Setting::IgnoreAbort];
        self.is_about_storing() || others.contains(&self)
    }

    fn is_about_postponing(self) -> bool {
        matches!(self, Setting::PostponeNothing | Setting::PostponeMuch)
    }

    fn text(self, pass: &str) -> String {
        let cache = format!(
            "{pass}_cache {pass}; {pass}_cache_key $request_uri; {pass}_cache_valid any 1h;"
        );
        match self {
            Setting::Gzip => "gzip on; gzip_min_length 0;".to_owned(),
            Setting::Sub => "sub_filter zzz yyy;".to_owned(),
            Setting::Ssi => "ssi on;".to_owned(),
            Setting::AddBefore => "add_before_body /page;".to_owned(),
            Setting::AddAfter => "add_after_body /page;".to_owned(),
            Setting::Auth => "auth_request /ok;".to_owned(),
            Setting::Mirror => "mirror /ok;".to_owned(),
            Setting::Charset => {
                "charset utf-8; source_charset koi8-r; override_charset on;".to_owned()
            }
            Setting::Gunzip => "gunzip on;".to_owned(),
            Setting::ForceRanges if matches!(pass, "grpc") => String::new(),
            Setting::ForceRanges => format!("{pass}_force_ranges on;"),
            Setting::NoChunks => "chunked_transfer_encoding off;".to_owned(),
            Setting::PostponeNothing => "postpone_output 0;".to_owned(),
            Setting::PostponeMuch => "postpone_output 64k;".to_owned(),
            Setting::Nopush => "sendfile on; tcp_nopush on;".to_owned(),
            Setting::NoNodelay => "tcp_nodelay off;".to_owned(),
            Setting::LimitRate => "limit_rate 1m;".to_owned(),
            Setting::UpstreamRate => format!("{pass}_limit_rate 1m;"),
            Setting::Store => format!("{pass}_store %%DIR%%/stored/$request_id;"),
            Setting::Cache => cache,
            Setting::CacheLocked => format!("{cache} {pass}_cache_lock on;"),
            Setting::EarlyHints => "early_hints 1;".to_owned(),
            Setting::IgnoreAbort if pass == "grpc" => String::new(),
            Setting::IgnoreAbort => format!("{pass}_ignore_client_abort on;"),
        }
    }
}

/// A server of all cases: case N is `/N`.
pub fn conf(cases: &[Case], origins: &Origins) -> String {
    let mut locations = String::new();
    let is_raw = |case: &Case| matches!(case.out, Out::Connect | Out::Stream);
    for (n, case) in cases.iter().enumerate().filter(|(_, case)| !is_raw(case)) {
        let text = case.text(origins);
        let _ = match case.place {
            Place::Itself => writeln!(locations, "location = /{n} {{ {text} }}"),
            Place::Included => writeln!(
                locations,
                "location = /{n} {{ ssi on; return 200 'a<!--#include virtual=\"/{n}/part\" -->b'; }}
                 location = /{n}/part {{ {text} }}"
            ),
            Place::Added => writeln!(
                locations,
                "location = /{n} {{ add_after_body /{n}/part; return 200 page; }}
                 location = /{n}/part {{ {text} }}"
            ),
        };
    }
    let mut stores = String::new();
    for pass in ["proxy", "fastcgi", "uwsgi", "scgi"] {
        let _ = writeln!(stores, "{pass}_cache_path %%DIR%%/cache-{pass} keys_zone={pass}:1m;");
    }
    let tls = "ssl_certificate %%DIR%%/chain.pem; ssl_certificate_key %%DIR%%/leaf.key;";
    let behind = origins.port(Out::Stream);
    let [http1, http2, uwsgi] =
        [Out::Proxy11, Out::Proxy2, Out::Uwsgi].map(|out| origins.port(out));
    format!(
        "worker_processes 1;
         events {{ worker_connections 1024; }}
         http {{
             access_log off; default_type text/html; {tls}
             charset_map koi8-r utf-8 {{ 80 E282AC; }}
             {stores}
             server {{
                 listen 127.0.0.1:%%PORT%%; listen 127.0.0.1:%%PORT1%% ssl; http2 on;
                 location = /ok {{ return 204; }}
                 location = /page {{ return 200 page; }}
                 {locations}
             }}
             server {{
                 listen 127.0.0.1:%%PORT4%%; listen 127.0.0.1:%%PORT5%% ssl;
                 tunnel_pass 127.0.0.1:{behind};
             }}
         }}
         stream {{
             {tls}
             server {{ listen 127.0.0.1:%%PORT2%%; proxy_pass 127.0.0.1:{behind}; }}
             server {{ listen 127.0.0.1:%%PORT3%% ssl; proxy_pass 127.0.0.1:{behind}; }}
             server {{ listen 127.0.0.1:%%PORT6%% ssl; proxy_pass 127.0.0.1:{http1}; }}
             server {{ listen 127.0.0.1:%%PORT7%% ssl; ssl_alpn h2; proxy_pass 127.0.0.1:{http2}; }}
             server {{ listen 127.0.0.1:%%PORT8%% ssl; proxy_pass 127.0.0.1:{uwsgi}; }}
         }}"
    )
}

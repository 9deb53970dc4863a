//! The head of an answer. A handler fills it in, header filters change it, and it is written once.

use weir_proto::{Renew, as_new};

use crate::answer::headers::Headers;

/// The head of an answer before it is written.
#[derive(Debug, Default)]
pub struct Response {
    /// Status code; 0 until there is an answer.
    pub status: u16,
    /// The status line behind the version, if a server behind has sent it.
    pub status_line: Option<Vec<u8>>,
    /// All headers but those below.
    pub headers: Headers,
    /// `Content-Length`. None if the length is not known beforehand.
    pub content_length: Option<u64>,
    /// The offset of the body in the whole, if it is a slice.
    pub content_offset: u64,
    /// The body is a slice of a whole. Ranges may also be cut out of a subrequest's body then.
    pub is_slice: bool,
    /// `Content-Type`, without charset.
    pub content_type: Vec<u8>,
    /// The charset that is added to the type.
    pub charset: Vec<u8>,
    /// The value of `Content-Type` as a server wrote it. Valid until type or charset change.
    type_as_said: Vec<u8>,
    /// The charset from `X-Accel-Charset`, which the body is recoded to.
    pub override_charset: Option<Vec<u8>>,
    /// `Last-Modified`, seconds since 1970.
    pub last_modified: Option<i64>,
    /// Its line is among `headers`, as a server or the configuration wrote it.
    pub has_last_modified_line: bool,
    /// `ETag`, with its quotes.
    pub etag: Option<Vec<u8>>,
    /// `Location`. A value that begins with a slash becomes a URL (`absolute_redirect`). A path that must not is among
    /// `headers`.
    pub location: Option<Vec<u8>>,
    /// `Server` of a server behind or a handler. None: weir's own. Empty: no line.
    pub server: Option<Vec<u8>>,
    /// `Date` of a server behind. Empty: no line.
    pub date: Option<Vec<u8>>,
    /// `Content-Encoding`, for filters.
    pub content_encoding: Option<Vec<u8>>,
    /// Other clients may get another coding, which `gzip_vary` tells caches.
    pub varies_by_encoding: bool,
    /// The answer accepts range requests.
    pub allow_ranges: bool,
    /// It accepts only a single range.
    pub single_range: bool,
    /// It ends only when the client leaves, so its duration does not count as latency.
    pub is_endless: bool,
    /// The head was written into the output.
    pub sent: bool,
    /// The server behind has evaluated the client's conditions (`If-*`).
    pub unconditional: bool,
    /// Conditions are evaluated by RFC 9110, section 13: with an entity tag, dates do not count, and an answer is modified if it
    /// is newer than the client's date. Slices are joined by its section 15.3.7.3.
    pub by_standard: bool,
    /// No body follows: HEAD, 204, 304.
    pub header_only: bool,
    /// The body is framed in chunks.
    pub chunked: bool,
    /// Bytes of the head as written.
    pub head_bytes: u64,
    /// Trailers will follow, so the body is sent in chunks if the client accepts them.
    pub expects_trailers: bool,
    /// Trailers behind a chunked body.
    pub trailers: Headers,
}

impl Renew for Response {
    fn renew(&mut self) {
        as_new!(self, Response {
            headers, trailers, content_type, charset, type_as_said;
            status, status_line, content_length, content_offset, is_slice, override_charset,
            last_modified, has_last_modified_line, etag, location, server, date, content_encoding, varies_by_encoding,
            allow_ranges, single_range, is_endless, sent, unconditional, header_only, chunked, head_bytes,
            expects_trailers, by_standard
        });
    }
}

impl Response {
    /// Removes the headers of a body that will not be sent, since an error page replaces it.
    pub fn forget_body(&mut self) {
        self.content_length = None;
        self.clear_last_modified();
        self.etag = None;
        self.content_encoding = None;
        self.content_type.clear();
        self.charset.clear();
        self.refuse_ranges();
    }

    /// Removes all headers, since a filter has replaced the answer. nginx: ngx_http_clean_header().
    pub fn forget_headers(&mut self) {
        self.forget_body();
        (self.headers, self.trailers) = (Headers::default(), Headers::default());
        (self.location, self.server, self.date) = (None, None, None);
        self.expects_trailers = false;
    }

    /// Prepares for a filter that changes the body: removes the length, and refuses ranges.
    pub fn expect_changes(&mut self) {
        self.content_length = None;
        self.refuse_ranges();
    }

    /// Serves no ranges, and removes a server's word that there are some.
    pub fn refuse_ranges(&mut self) {
        self.allow_ranges = false;
        self.headers.remove(b"Accept-Ranges");
    }

    /// Whether the body has a content coding, such as gzip. An empty value names none.
    pub fn is_coded(&self) -> bool {
        self.content_encoding.as_ref().is_some_and(|coding| !coding.is_empty())
    }

    /// Makes the entity tag weak, since the bytes of the body change but not its meaning (RFC 9110, section 8.8.3).
    pub fn weaken_etag(&mut self) {
        if let Some(etag) = self.etag.take() {
            self.etag = match etag.first() {
                Some(b'W') => Some(etag),
                Some(b'"') => Some([b"W/", etag.as_slice()].concat()),
                _ => None,
            };
        }
    }

    /// Sets `Last-Modified` to a line that is sent as written, and to its time, if any. An empty value removes both.
    pub fn set_last_modified(&mut self, value: &[u8]) {
        self.clear_last_modified();
        if !value.is_empty() {
            self.add_last_modified(b"Last-Modified", value);
        }
    }

    /// The same for a server's line, which is added behind the present lines.
    pub fn add_last_modified(&mut self, name: &[u8], value: &[u8]) {
        self.last_modified = weir_proto::date::parse(value);
        self.has_last_modified_line = true;
        self.headers.add(name, value);
    }

    /// Removes `Last-Modified`.
    pub fn clear_last_modified(&mut self) {
        self.last_modified = None;
        if std::mem::take(&mut self.has_last_modified_line) {
            self.headers.remove(b"Last-Modified");
        }
    }

    /// Appends `$sent_http_*` of a header that has a field of its own. Returns false for other names.
    pub fn special_header(&self, name: &[u8], out: &mut Vec<u8>) -> bool {
        match name {
            b"content_type" if !self.content_type.is_empty() => {
                self.write_content_type(out);
                true
            }
            b"content_length" => append(out, self.content_length.map(|n| n.to_string())),
            b"location" => append(out, self.location.as_ref()),
            b"etag" => append(out, self.etag.as_ref()),
            b"content_encoding" => append(out, self.content_encoding.as_ref()),
            b"last_modified" if !self.has_last_modified_line => {
                append(out, self.last_modified.map(|t| weir_proto::date::imf_fixdate(t).to_vec()))
            }
            b"server" => append(out, self.server.as_ref()),
            b"date" => append(out, self.date.as_ref()),
            b"transfer_encoding" if self.chunked => append(out, Some("chunked")),
            _ => false,
        }
    }

    /// Sets type and charset from a value of `Content-Type`. The value is sent as written until one of them changes.
    pub fn say_type(&mut self, value: &[u8]) {
        let (kind, charset) = type_and_charset(value);
        self.content_type.clear();
        self.content_type.extend_from_slice(kind);
        self.charset.clear();
        self.charset.extend_from_slice(charset);
        self.type_as_said.clear();
        if kind.len() < value.len() {
            self.type_as_said.extend_from_slice(value);
        }
    }

    /// Sets the type. As in nginx the charset stays: it may be that of a server whose `X-Accel-Redirect` led here.
    pub fn set_type(&mut self, kind: &[u8]) {
        self.content_type.clear();
        self.content_type.extend_from_slice(kind);
        self.type_as_said.clear();
    }

    /// Sets the charset.
    pub fn set_charset(&mut self, charset: Vec<u8>) {
        self.charset = charset;
        self.type_as_said.clear();
    }

    /// Sets the charset of a body that is not converted. As in nginx, a type that names an empty
    /// charset is still sent as written.
    pub fn name_charset(&mut self, charset: Vec<u8>) {
        if self.charset.is_empty() && !self.type_as_said.is_empty() {
            self.charset = charset;
        } else {
            self.set_charset(charset);
        }
    }

    /// Appends the type with its charset.
    pub fn write_content_type(&self, out: &mut Vec<u8>) {
        if !self.type_as_said.is_empty() {
            let (kind, charset) = type_and_charset(&self.type_as_said);
            if kind == self.content_type && (charset.is_empty() || charset == self.charset) {
                out.extend_from_slice(&self.type_as_said);
                return;
            }
        }
        out.extend_from_slice(&self.content_type);
        if !self.charset.is_empty() && charset_parameter(&self.content_type).is_none() {
            out.extend_from_slice(b"; charset=");
            out.extend_from_slice(&self.charset);
        }
    }
}

/// Splits a value at its first parameter `charset`: the part before it, and its value up to the end, as nginx reads the line.
/// The whole value if there is no such parameter, or no type before it.
fn type_and_charset(value: &[u8]) -> (&[u8], &[u8]) {
    let parameter = charset_parameter(value).filter(|(kind, _)| !kind.is_empty());
    let Some((kind, charset)) = parameter else { return (value, b"") };
    let charset = charset.strip_prefix(b"\"").unwrap_or(charset);
    (kind, charset.strip_suffix(b"\"").unwrap_or(charset))
}

/// The part before the first parameter `charset`, and the part behind its `=`.
fn charset_parameter(value: &[u8]) -> Option<(&[u8], &[u8])> {
    let name = b"charset=";
    let mut parameters = value.iter().enumerate().filter(|(_, b)| **b == b';');
    parameters.find_map(|(at, _)| {
        let rest = value[at + 1..].trim_ascii_start();
        let is = rest.get(..name.len()).is_some_and(|rest| rest.eq_ignore_ascii_case(name));
        is.then(|| (&value[..at], &rest[name.len()..]))
    })
}

fn append(out: &mut Vec<u8>, value: Option<impl AsRef<[u8]>>) -> bool {
    if let Some(value) = &value {
        out.extend_from_slice(value.as_ref());
    }
    value.is_some()
}

/// The reason phrase for a status, as nginx writes it; empty for one that it does not name.
pub fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        201 => "Created",
        202 => "Accepted",
        204 => "No Content",
        206 => "Partial Content",
        301 => "Moved Permanently",
        302 => "Moved Temporarily",
        303 => "See Other",
        304 => "Not Modified",
        307 => "Temporary Redirect",
        308 => "Permanent Redirect",
        400 => "Bad Request",
        401 => "Unauthorized",
        402 => "Payment Required",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Not Allowed",
        406 => "Not Acceptable",
        407 => "Proxy Authentication Required",
        408 => "Request Time-out",
        409 => "Conflict",
        410 => "Gone",
        411 => "Length Required",
        412 => "Precondition Failed",
        413 => "Request Entity Too Large",
        414 => "Request-URI Too Large",
        415 => "Unsupported Media Type",
        416 => "Requested Range Not Satisfiable",
        421 => "Misdirected Request",
        429 => "Too Many Requests",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        502 => "Bad Gateway",
        503 => "Service Temporarily Unavailable",
        504 => "Gateway Time-out",
        505 => "HTTP Version Not Supported",
        507 => "Insufficient Storage",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::Response;

    fn written(value: &str) -> (String, String, String) {
        let mut response = Response::default();
        response.say_type(value.as_bytes());
        let mut out = Vec::new();
        response.write_content_type(&mut out);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (text(&response.content_type), text(&response.charset), text(&out))
    }

    #[test]
    fn a_type_stays_as_it_was_written() {
        for (value, kind, charset) in [
            ("text/html; charset=utf-8", "text/html", "utf-8"),
            ("text/html;charset=UTF-8", "text/html", "UTF-8"),
            ("text/html; a=b;  Charset=\"x\"", "text/html; a=b", "x"),
            ("text/html; charset=x; a=b", "text/html", "x; a=b"),
            ("text/html; a=b", "text/html; a=b", ""),
            ("text/html;", "text/html;", ""),
            ("text/html; charset=", "text/html", ""),
            ("text/html;charset=\"\"; a=b", "text/html", "\"; a=b"),
            (";charset=x", ";charset=x", ""),
            ("", "", ""),
        ] {
            assert_eq!(written(value), (kind.to_owned(), charset.to_owned(), value.to_owned()));
        }
    }

    #[test]
    fn what_takes_the_place_of_a_type_or_a_charset_is_written() {
        let mut response = Response::default();
        response.say_type(b"text/html;charset=UTF-8");
        let mut out = Vec::new();
        response.set_charset(b"UTF-8".to_vec());
        response.write_content_type(&mut out);
        assert_eq!(out, b"text/html; charset=UTF-8");
        for unnamed in ["text/html; charset=", "text/html;charset=\"\""] {
            response.say_type(unnamed.as_bytes());
            response.name_charset(b"koi8-r".to_vec());
            out.clear();
            response.write_content_type(&mut out);
            assert_eq!(out, unnamed.as_bytes());
            response.set_charset(b"utf-8".to_vec());
            out.clear();
            response.write_content_type(&mut out);
            assert_eq!(out, b"text/html; charset=utf-8");
        }
        response.say_type(b"text/html;charset=UTF-8");
        response.forget_body();
        response.set_type(b"text/html");
        out.clear();
        response.write_content_type(&mut out);
        assert_eq!(out, b"text/html");
    }
}

//! The head of a script's answer.

use weir_proto::http1::{
    HeadProgress, HeaderId, HeaderLine, ResponseError, ResponseHead, ResponseParser,
};
use weir_upstream::framing::Framing;

use crate::upstream::protocol::{Answer, AnswerError};

/// Parses the head that a script writes.
#[derive(Debug)]
pub struct ScriptHead(ResponseParser);

impl ScriptHead {
    /// For header lines that may follow an HTTP status line.
    pub fn any() -> ScriptHead {
        ScriptHead(ResponseParser::new())
    }

    /// For header lines alone.
    pub fn lines() -> ScriptHead {
        ScriptHead(ResponseParser::of_script())
    }

    /// The head, when it is complete.
    pub fn read(&mut self, buf: &[u8]) -> Result<Option<Answer>, AnswerError> {
        match self.0.parse(buf) {
            Ok(HeadProgress::Done) => {}
            Ok(_) => return Ok(None),
            Err(ResponseError::NoStatusLine) => {
                self.0 = ResponseParser::of_script();
                return self.read(buf);
            }
            Err(error) => return Err(AnswerError::head(error, buf)),
        }
        let answer = understand(self.0.head(), buf)?;
        Ok(Some(Answer { headers: self.take_lines(), ..answer }))
    }

    /// The lines of an invalid head that were parsed before the error.
    pub fn take_lines(&mut self) -> Vec<HeaderLine> {
        self.0.take_head().headers
    }
}

/// The answer without its header lines.
fn understand(head: &ResponseHead, buf: &[u8]) -> Result<Answer, AnswerError> {
    let framing = Framing::of(&head.headers, buf)?;
    let (mut status, mut line) = (head.status, head.status_line);
    if status == 0 {
        (status, line) = match head.header(HeaderId::Status) {
            Some(header) => (number(header.value.of(buf))?, header.value),
            None if head.header(HeaderId::Location).is_some() => (302, line),
            None => (200, line),
        };
    }
    // Of the statuses below 200, only 101 is an answer.
    if status < 200 && status != 101 {
        return Err(AnswerError::Status(status.to_string()));
    }
    Ok(Answer {
        status,
        // An HTTP status line is passed on as it is, `Status` if it has a reason phrase.
        status_line: (head.status > 0 || line.len() > 3).then_some(line),
        headers: Vec::new(),
        end: head.end as usize,
        length: framing.length,
        keepalive: false,
    })
}

/// The number that `Status` begins with.
fn number(value: &[u8]) -> Result<u16, AnswerError> {
    let digits = value.get(..3).and_then(weir_conf::values::number);
    digits
        .and_then(|n| u16::try_from(n).ok())
        .ok_or_else(|| AnswerError::Status(weir_log::Bytes(value).to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(
        mut head: ScriptHead,
        text: &[u8],
    ) -> Result<(u16, Option<String>, usize), AnswerError> {
        for end in 0..text.len() {
            assert!(!matches!(head.read(&text[..end]), Ok(Some(_))), "complete at {end}");
        }
        let answer = head.read(text)?.expect("a whole head");
        let line = answer.status_line.map(|l| String::from_utf8_lossy(l.of(text)).into_owned());
        Ok((answer.status, line, answer.end))
    }

    #[test]
    fn the_status_is_where_scripts_write_it() {
        let plain = |text: &[u8]| read(ScriptHead::lines(), text);
        assert_eq!(plain(b"A: b\r\n\r\n"), Ok((200, None, 8)));
        assert_eq!(plain(b"Location: /x\n\n"), Ok((302, None, 14)));
        let text = b"Status: 404 No such thing\r\nX: y\r\n\r\n";
        assert_eq!(plain(text), Ok((404, Some("404 No such thing".to_owned()), text.len())));
        assert_eq!(plain(b"Status: 204\r\n\r\n"), Ok((204, None, 15)));
        let any = |text: &[u8]| read(ScriptHead::any(), text);
        assert_eq!(any(b"A: b\r\n\r\n"), Ok((200, None, 8)));
        let text = b"HTTP/1.1 403 No\r\nStatus: 500\r\n\r\n";
        assert_eq!(any(text), Ok((403, Some("403 No".to_owned()), text.len())));
    }

    #[test]
    fn what_is_no_status_is_refused() {
        for bad in ["", "abc", "1", "099 x", "100 Continue", "103"] {
            let text = format!("Status: {bad}\r\n\r\n");
            let error = ScriptHead::lines().read(text.as_bytes()).unwrap_err().to_string();
            assert!(error.starts_with("upstream sent invalid status"), "{bad}: {error}");
        }
    }
}

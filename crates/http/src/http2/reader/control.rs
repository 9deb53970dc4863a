//! PRIORITY, RST_STREAM, SETTINGS and WINDOW_UPDATE of a client.

use weir_engine::spend;
use weir_http2::{ConnectionError, ReadResult, Stream as _};
use weir_proto::http2::frame::{self, ErrorCode, FrameHead, FrameType, Setting};

use super::super::stream::Stream;
use super::{CANCEL, Reader};

impl Reader {
    pub(super) fn count_priority(&mut self, head: FrameHead, payload: &[u8]) -> ReadResult {
        let Ok((depends_on, [])) = frame::dependency(payload) else {
            let text = format!("client sent PRIORITY frame with incorrect length {}", head.len);
            return ConnectionError::new(ErrorCode::FrameSize, text);
        };
        self.history.priorities += 1;
        if self.history.priorities
            > 2 * self.link.v2().max_concurrent_streams.max(100) + self.history.total / 1024
        {
            return ConnectionError::new(
                ErrorCode::EnhanceYourCalm,
                "client sent too many PRIORITY frames",
            );
        }
        if head.stream == 0 {
            let text = "client sent PRIORITY frame with incorrect identifier";
            return ConnectionError::new(ErrorCode::Protocol, text);
        }
        if depends_on == head.stream {
            let text = format!(
                "client sent PRIORITY frame for stream {} with incorrect dependency",
                head.stream
            );
            return ConnectionError::new(ErrorCode::Protocol, text);
        }
        Ok(())
    }

    pub(super) fn cancel(&mut self, head: FrameHead, code: u32) -> ReadResult {
        if head.stream == 0 || self.history.is_idle(head.stream) {
            let text = "client sent RST_STREAM frame with incorrect identifier";
            return ConnectionError::new(ErrorCode::Protocol, text);
        }
        self.link.forget_reset(head.stream);
        let Some(stream) = self.link.stream(head.stream) else { return Ok(()) };
        stream.cancel(code);
        self.count_cancelled()
    }

    /// Resets a stream for an error of the client.
    pub(super) fn reset_stream(&mut self, stream: &Stream, code: ErrorCode) -> ReadResult {
        stream.reset(code);
        self.count_cancelled()
    }

    fn count_cancelled(&mut self) -> ReadResult {
        self.note_cancelled();
        self.check_cancelled()
    }

    /// Counts a reset stream.
    pub(super) fn note_cancelled(&mut self) {
        spend(CANCEL);
        self.has_reset = true;
        self.history.cancelled += 1;
    }

    /// Fails on too many reset streams. Requests that are reset at once cost the client nothing but the server work, whichever end
    /// sends the reset.
    pub(super) fn check_cancelled(&self) -> ReadResult {
        let most = 2 * self.link.v2().max_concurrent_streams.max(100);
        if self.history.cancelled > most + self.link.ledger.answers.get() {
            return ConnectionError::new(
                ErrorCode::EnhanceYourCalm,
                "client canceled too many streams",
            );
        }
        Ok(())
    }

    pub(super) fn take_setting(&mut self, setting: Setting) -> ReadResult {
        let wrong = |name: &str, value: u32| {
            let text = format!("client sent SETTINGS frame with incorrect {name} value {value}");
            ConnectionError::new(ErrorCode::Protocol, text)
        };
        match setting {
            Setting::MaxFrameSize(size) if !(16_384..1 << 24).contains(&size) => {
                return wrong("MAX_FRAME_SIZE", size);
            }
            Setting::MaxFrameSize(size) => self.link.set_frame_size(size),
            Setting::EnablePush(on) if on > 1 => return wrong("ENABLE_PUSH", on),
            Setting::HeaderTableSize(size) => self.link.set_table_size(size),
            _ => {}
        }
        Ok(())
    }

    pub(super) fn refuse_window(
        &mut self,
        head: FrameHead,
        stream: Option<&Stream>,
        by: u32,
    ) -> ReadResult {
        match (head.kind, stream) {
            (FrameType::Settings, None) => {
                let name = "INITIAL_WINDOW_SIZE";
                let text = format!("client sent SETTINGS frame with incorrect {name} value {by}");
                ConnectionError::new(ErrorCode::FlowControl, text)
            }
            (_, _) if by == 0 => {
                let text = "client sent WINDOW_UPDATE frame with incorrect window increment 0";
                ConnectionError::new(ErrorCode::Protocol, text)
            }
            (_, None) => {
                let text = format!(
                    "client violated connection flow control: received WINDOW_UPDATE frame with \
                     window increment {by} not allowed for window {}",
                    self.link.window() - i64::from(by)
                );
                ConnectionError::new(ErrorCode::FlowControl, text)
            }
            (kind, Some(stream)) => {
                if kind == FrameType::WindowUpdate {
                    self.log(format_args!(
                        "client violated flow control for stream {}: received WINDOW_UPDATE frame \
                         with window increment {by} not allowed for window {}",
                        stream.id,
                        stream.send_window().window() - i64::from(by)
                    ));
                }
                self.reset_stream(stream, ErrorCode::FlowControl)
            }
        }
    }
}

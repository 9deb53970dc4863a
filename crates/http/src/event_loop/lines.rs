//! The lines of access logs that a loop writes for its connections, including those that began on
//! another loop.

use weir_values::log::Writers;

use super::LoopState;

impl LoopState {
    /// The queue for the access logs of a connection. `first` is the queue of its first requests,
    /// which may be another loop's.
    pub(crate) fn lines<'a>(&'a self, first: Option<&'a Writers>) -> &'a Writers {
        let is_others = |lines: &&Writers| lines.is_beside(&self.logs) && !lines.is(&self.logs);
        let Some(others) = first.filter(is_others) else { return &self.logs };
        let mut left = self.common.left_lines.borrow_mut();
        if !left.iter().any(|lines| lines.is(others)) {
            left.retain(|lines| !lines.is_empty());
            left.push(others.clone());
        }
        others
    }

    /// Waits until the access log lines of a connection's requests are in their files, unless the
    /// disk is slow.
    pub(crate) async fn logged(&self, first: Option<&Writers>) {
        self.lines(first).written(&self.handle).await;
    }

    /// Starts to write buffered lines of access logs. Returns the queues.
    pub fn flush_logs(&self) -> Vec<Writers> {
        let mut queues = Vec::new();
        self.each_state(|state| {
            state.logs.flush(&state.handle);
            queues.push(state.logs.clone());
        });
        queues
    }

    /// Writes all access log lines and waits for that. The loop has ended.
    pub fn finish_logs(&self) {
        self.parts.iter().for_each(|part| part.exit_process(self));
        self.each_state(|state| state.logs.finish());
        self.common.left_lines.borrow().iter().for_each(Writers::finish);
    }
}

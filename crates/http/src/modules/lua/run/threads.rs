//! The light threads of a script: a coroutine starts one, waits for one to end, or ends one.

use mlua::{MultiValue, Thread, Value};

use super::{Routine, RoutineState, ScriptOutcome, ScriptRun, ready, refused, succeeded};
use crate::modules::lua::yield_request::{ThreadId, failure};

impl ScriptRun<'_> {
    /// Starts a light thread at once. The coroutine that spawned it runs after those that are
    /// ready.
    pub(super) fn spawn(
        &mut self,
        i: usize,
        thread: Thread,
        args: MultiValue,
    ) -> Option<ScriptOutcome> {
        let id = ThreadId::of(&Value::Thread(thread.clone()));
        let anchors = &self.vm.anchors;
        match anchors.keep(thread).and_then(|thread| Ok((thread, anchors.pack(args)?))) {
            Ok((thread, args)) => {
                self.go_on_behind(i);
                let number = self.routines.add(thread, id, ready(move |_| args.unpack()));
                self.ready.push_front(number);
                None
            }
            Err(error) => self.coroutine_failed(0, &error),
        }
    }

    /// Waits for the first of these light threads to end. Each can be waited for once.
    pub(super) fn join(&mut self, i: usize, ids: Vec<ThreadId>) {
        let known = |id: &ThreadId| self.routines.known(*id);
        let found: Vec<(usize, usize)> =
            ids.iter().enumerate().filter_map(|(n, id)| Some((n, known(id)?))).collect();
        let is_over = |at: usize| {
            self.routines.get(at).is_some_and(|r| matches!(r.state(), RoutineState::Ended(..)))
        };
        let first = found.iter().copied().find(|(_, at)| is_over(*at));
        let over = first.map(|(_, at)| at);
        let state = match first {
            Some((n, at)) => self.take_values(n, at),
            None if found.is_empty() => ready(|lua| {
                let mut values = failure(lua, "already waited or killed");
                values.push_front(Value::Nil);
                Ok(values)
            }),
            None => {
                self.joining.extend(self.routines.get(i).map(Routine::number));
                return self.set(i, RoutineState::Joining(ids));
            }
        };
        // The values are passed on, so the coroutine is not needed any more. The script's own stays
        // the first of the run.
        let at = match over {
            Some(over) if over > 0 => {
                self.routines.remove(over);
                if over < i { i - 1 } else { i }
            }
            _ => i,
        };
        self.set(at, state);
    }

    /// The values of a light thread that has ended, preceded by its index in the waiting call and
    /// its success.
    fn take_values(&mut self, place: usize, over: usize) -> RoutineState {
        let Some((well, values)) = self.routines.take_values(over) else { return succeeded() };
        ready(move |_| {
            let mut values = values.unpack()?;
            values.push_front(Value::Boolean(well));
            values.push_front(Value::Integer(place as i64 + 1));
            Ok(values)
        })
    }

    /// Lets coroutines that wait for this light thread check again.
    pub(super) fn rejoin(&mut self, id: ThreadId) {
        let mut at = 0;
        while let Some(number) = self.joining.get(at) {
            let i = self.routines.index_of(*number);
            let routine = i.and_then(|i| Some((i, self.routines.get(i)?.state())));
            match routine {
                Some((_, RoutineState::Joining(ids))) if !ids.contains(&id) => at += 1,
                Some((i, RoutineState::Joining(_))) => {
                    self.joining.remove(at);
                    if let RoutineState::Joining(ids) = self.routines.replace(i, RoutineState::Busy)
                    {
                        self.join(i, ids);
                    }
                }
                // The waiting coroutine was killed.
                _ => drop(self.joining.remove(at)),
            }
        }
    }

    /// Ends a light thread, unless it has ended or waits for subrequests.
    pub(super) fn kill(&mut self, i: usize, id: ThreadId) {
        let at = self.routines.known(id);
        let runs = |at: &usize| {
            self.routines
                .get(*at)
                .is_some_and(|routine| !matches!(routine.state(), RoutineState::Ended(..)))
        };
        let Some(at) = at.filter(runs) else {
            return self.set(i, refused("already waited or killed"));
        };
        if at == 0 || at == i {
            return self.set(i, refused("not a light thread of this one"));
        }
        let state = self.routines.get(at).map(Routine::state);
        if matches!(state, Some(RoutineState::Capturing(_))) {
            return self.set(i, refused("pending subrequests"));
        }
        self.set(i, succeeded());
        self.routines.remove(at);
        self.rejoin(id);
    }
}

//! States how long a process is about to be stopped, before it is.

use std::time::Duration;

use pagewise_model::Pid;
use pagewise_proc::{ProcRoot, stat};
use pagewise_remote::expected_pause;

use crate::output::note;

/// Shorter pauses are not worth a message: the scheduler makes threads wait as long.
const WORTH_SAYING: Duration = Duration::from_millis(10);

/// Prints the time for which all threads of a process are about to be stopped, if it is long.
pub(crate) fn announce(root: &ProcRoot, pid: Pid) {
    let stat = root.read(pid, "stat").ok().and_then(|text| stat::parse(&text).ok());
    let Some(threads) = stat.map(|stat| stat.threads) else { return };
    let pause = expected_pause(usize::try_from(threads).unwrap_or(usize::MAX));
    if pause > WORTH_SAYING {
        let pause = pause.as_secs_f64() * 1e3;
        note(format_args!("stops the {threads} threads of process {pid} for about {pause} ms"));
    }
}

//! Full-screen mode of the terminal, which is restored in every case, also after a panic.

use std::io::{self, BufWriter, Stdout, Write};
use std::panic;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use pagewise_tui::{TopState, TuiEvent, draw};
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::{Hide, Show};
use ratatui::crossterm::event::{DisableMouseCapture, EnableMouseCapture};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use ratatui::layout::Rect;
use signal_hook::consts::SIGTSTP;
use signal_hook::low_level::emulate_default_handler;

/// Bytes of the output buffer: large enough that a frame takes few system calls.
const BUFFER: usize = 64 << 10;

/// True while the terminal is in the mode of a full screen.
static IS_ENTERED: AtomicBool = AtomicBool::new(false);
/// True once a thread panicked.
static HAS_PANICKED: AtomicBool = AtomicBool::new(false);
static PANIC_HOOK: Once = Once::new();

/// The terminal while a full screen is on it.
pub(super) struct FullScreen {
    terminal: Terminal<CrosstermBackend<BufWriter<Stdout>>>,
}

impl FullScreen {
    /// Takes the terminal over. A panic of any thread restores it.
    pub(super) fn enter() -> io::Result<FullScreen> {
        PANIC_HOOK.call_once(|| {
            let before = panic::take_hook();
            panic::set_hook(Box::new(move |info| {
                HAS_PANICKED.store(true, Ordering::SeqCst);
                restore();
                before(info);
            }));
        });
        let out = BufWriter::with_capacity(BUFFER, io::stdout());
        let terminal = Terminal::new(CrosstermBackend::new(out))?;
        let mut screen = FullScreen { terminal };
        screen.take_over()?;
        Ok(screen)
    }

    /// Columns and lines.
    pub(super) fn size(&self) -> io::Result<(u16, u16)> {
        let size = self.terminal.size()?;
        Ok((size.width, size.height))
    }

    /// Draws the state.
    pub(super) fn draw(&mut self, state: &TopState) -> io::Result<()> {
        self.terminal.draw(|frame| draw(frame, state)).map(|_| ())
    }

    /// Makes the next frame draw every cell.
    pub(super) fn clear(&mut self) -> io::Result<()> {
        // `Terminal::clear` would ask the terminal for the position of the cursor, and the answer
        // would be read as keys.
        let size = self.terminal.size()?;
        self.terminal.resize(Rect::new(0, 0, size.width, size.height))
    }

    /// Restores the terminal until [`FullScreen::resume`].
    pub(super) fn leave(&mut self) {
        restore();
    }

    /// Stops this process until a shell continues it.
    pub(super) fn suspend(&mut self, state: &mut TopState) -> io::Result<()> {
        self.leave();
        emulate_default_handler(SIGTSTP)?;
        self.resume(state)
    }

    /// Takes the terminal over again. Its size may have changed.
    pub(super) fn resume(&mut self, state: &mut TopState) -> io::Result<()> {
        self.take_over()?;
        let (columns, lines) = self.size()?;
        state.apply(TuiEvent::Resize(columns, lines));
        Ok(())
    }

    fn take_over(&mut self) -> io::Result<()> {
        // A shell may have changed the mode while this process was stopped: set it in any case.
        disable_raw_mode()?;
        enable_raw_mode()?;
        IS_ENTERED.store(true, Ordering::SeqCst);
        execute!(io::stdout(), EnterAlternateScreen, EnableMouseCapture, Hide)?;
        self.clear()
    }

    /// True if a thread panicked: its message is on the terminal.
    pub(super) fn has_panicked() -> bool {
        HAS_PANICKED.load(Ordering::SeqCst)
    }
}

impl Drop for FullScreen {
    fn drop(&mut self) {
        restore();
    }
}

/// Restores the terminal. Errors are ignored: if the terminal is gone, nothing is left to restore.
fn restore() {
    if IS_ENTERED.swap(false, Ordering::SeqCst) {
        let mut out = io::stdout();
        let _ = execute!(out, DisableMouseCapture, LeaveAlternateScreen, Show);
        let _ = out.flush();
        let _ = disable_raw_mode();
    }
}

#[cfg(test)]
#[path = "../../../tests/fixture/terminal.rs"]
#[allow(dead_code, reason = "the tests of whole commands use the rest")]
mod terminal;

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use super::terminal::Terminal as TestTerminal;
    use super::*;

    /// Ends by a panic of another thread, as `top` would.
    #[test]
    #[ignore = "the next test runs it in a terminal"]
    fn a_full_screen_whose_thread_panics() {
        let _screen = FullScreen::enter().expect("a terminal");
        thread::sleep(Duration::from_millis(300));
        let thread = thread::spawn(|| panic!("a panic on purpose"));
        assert!(thread.join().is_err() && FullScreen::has_panicked());
        // The message stays on the screen, and the terminal is the shell's already.
        thread::sleep(Duration::from_millis(300));
    }

    #[test]
    fn a_panic_restores_the_terminal_and_its_message_stays() {
        let Some(terminal) = TestTerminal::start(100, 30) else { return };
        let program = std::env::current_exe().expect("this program has a path");
        let victim = "a_full_screen_whose_thread_panics --ignored --nocapture";
        terminal.line(&format!("clear; {} {victim}; echo status=$?", program.display()));
        let screen = terminal.wait_for("status=0");
        assert!(screen.contains("a panic on purpose"), "{screen}");
        terminal.assert_restored(0);
    }
}

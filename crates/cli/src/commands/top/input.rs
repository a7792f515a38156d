//! Keys, the mouse and signals as events.

use std::ffi::c_int;
use std::io;
use std::sync::mpsc::Sender;
use std::thread;

use pagewise_tui::{KeyPress, PointerAction, TuiEvent};
use ratatui::crossterm::event::{
    self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers, MouseButton, MouseEvent,
    MouseEventKind,
};
use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP};
use signal_hook::iterator::Signals;

use super::live::LiveEvent;

/// Signals that end, stop or continue this process.
const SIGNALS: [c_int; 6] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGCONT];

/// Starts the threads that send events of the terminal and signals.
pub(super) fn start(sender: &Sender<LiveEvent>) -> io::Result<()> {
    let mut signals = Signals::new(SIGNALS)?;
    let to_loop = sender.clone();
    thread::Builder::new().name("signals".into()).spawn(move || {
        for signal in signals.forever() {
            if to_loop.send(LiveEvent::Signal(signal)).is_err() {
                return;
            }
        }
    })?;
    let to_loop = sender.clone();
    thread::Builder::new().name("input".into()).spawn(move || {
        loop {
            let next = match event::read() {
                Ok(event) => converted(&event).map(LiveEvent::Screen),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => None,
                Err(_) => Some(LiveEvent::InputEnded),
            };
            let is_last = matches!(next, Some(LiveEvent::InputEnded));
            let is_closed = next.is_some_and(|next| to_loop.send(next).is_err());
            if is_last || is_closed {
                return;
            }
        }
    })?;
    Ok(())
}

fn converted(event: &Event) -> Option<TuiEvent> {
    match event {
        Event::Key(key) if key.kind != KeyEventKind::Release => press(*key).map(TuiEvent::Key),
        Event::Mouse(mouse) => pointer(*mouse),
        Event::Resize(columns, lines) => Some(TuiEvent::Resize(*columns, *lines)),
        _ => None,
    }
}

fn press(key: KeyEvent) -> Option<KeyPress> {
    let has_ctrl = key.modifiers.contains(KeyModifiers::CONTROL);
    Some(match key.code {
        KeyCode::Char(letter) if has_ctrl => KeyPress::Ctrl(letter.to_ascii_lowercase()),
        KeyCode::Char(_) if key.modifiers.contains(KeyModifiers::ALT) => return None,
        KeyCode::Char(letter) => KeyPress::Char(letter),
        KeyCode::Enter => KeyPress::Enter,
        KeyCode::Esc => KeyPress::Esc,
        KeyCode::Backspace => KeyPress::Backspace,
        KeyCode::Tab => KeyPress::Tab,
        KeyCode::BackTab => KeyPress::BackTab,
        KeyCode::Up => KeyPress::Up,
        KeyCode::Down => KeyPress::Down,
        KeyCode::Left => KeyPress::Left,
        KeyCode::Right => KeyPress::Right,
        KeyCode::PageUp => KeyPress::PageUp,
        KeyCode::PageDown => KeyPress::PageDown,
        KeyCode::Home => KeyPress::Home,
        KeyCode::End => KeyPress::End,
        KeyCode::F(number) => KeyPress::Function(number),
        _ => return None,
    })
}

fn pointer(mouse: MouseEvent) -> Option<TuiEvent> {
    let action = match mouse.kind {
        MouseEventKind::Down(MouseButton::Left) => PointerAction::Press,
        MouseEventKind::ScrollUp => PointerAction::WheelUp,
        MouseEventKind::ScrollDown => PointerAction::WheelDown,
        _ => return None,
    };
    Some(TuiEvent::Pointer(action, mouse.column, mouse.row))
}

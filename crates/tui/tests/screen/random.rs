//! Tests with random events: the state machine does not panic, draws nothing outside of the
//! terminal, and shows no control character.

use std::time::Duration;

use pagewise_tui::PageSubject;
use pagewise_tui::{
    InstrumentEnd, KeyPress, OutputStream, PageInstrument, PointerAction, TuiEvent,
};
use proptest::prelude::*;

use crate::frames::{page, reports};
use crate::made::MadeScreen;

fn keys() -> impl Strategy<Value = KeyPress> {
    prop_oneof![
        6 => proptest::sample::select("><r/gtv +-qdhfs?jkG[](){}^$12345678x".chars().collect::<Vec<_>>())
            .prop_map(KeyPress::Char),
        1 => any::<char>().prop_map(KeyPress::Char),
        1 => proptest::char::range('a', 'z').prop_map(KeyPress::Ctrl),
        6 => proptest::sample::select(vec![
            KeyPress::Enter, KeyPress::Esc, KeyPress::Backspace, KeyPress::Tab, KeyPress::BackTab,
            KeyPress::Up, KeyPress::Down, KeyPress::Left, KeyPress::Right, KeyPress::PageUp,
            KeyPress::PageDown, KeyPress::Home, KeyPress::End, KeyPress::Function(1),
        ]),
    ]
}

fn pointers() -> impl Strategy<Value = TuiEvent> {
    let actions = vec![PointerAction::Press, PointerAction::WheelUp, PointerAction::WheelDown];
    (proptest::sample::select(actions), 0..200u16, 0..60u16)
        .prop_map(|(action, x, y)| TuiEvent::Pointer(action, x, y))
}

fn pages(subject: PageSubject) -> impl Strategy<Value = TuiEvent> {
    let instrument = || proptest::sample::select(PageInstrument::ALL.to_vec());
    let (first, second, third, fourth) =
        (subject.clone(), subject.clone(), subject.clone(), subject);
    prop_oneof![
        Just(TuiEvent::Reports(first, reports())),
        any::<String>().prop_map(move |why| TuiEvent::Unreadable(second.clone(), why)),
        (instrument(), any::<bool>(), any::<Vec<u8>>()).prop_map(move |(it, is_report, text)| {
            let stream = if is_report { OutputStream::Report } else { OutputStream::Messages };
            TuiEvent::Output(third.clone(), it, stream, text)
        }),
        instrument().prop_map(move |it| TuiEvent::Ended(fourth.clone(), it, InstrumentEnd::Failed)),
    ]
}

fn events(subject: PageSubject) -> impl Strategy<Value = Vec<TuiEvent>> {
    let event = prop_oneof![
        12 => keys().prop_map(TuiEvent::Key),
        3 => pointers(),
        3 => pages(subject),
        1 => (0..200u16, 0..60u16).prop_map(|(columns, lines)| TuiEvent::Resize(columns, lines)),
        1 => any::<String>().prop_map(TuiEvent::Message),
        1 => (0..100_000u64).prop_map(|ms| TuiEvent::Interval(Duration::from_millis(ms))),
    ];
    proptest::collection::vec(event, 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    #[test]
    fn random_events_never_panic(
        (columns, lines) in (0..200u16, 0..60u16),
        is_recording: bool,
        events in events(page(80, 24).1),
    ) {
        let recording = is_recording.then_some((5, 9));
        let mut screen = MadeScreen::with((columns, lines), Default::default(), recording);
        for event in events {
            screen.apply(event);
            let frame = screen.frame();
            prop_assert!(!screen.has_control_characters(), "{}", frame);
        }
    }
}

"""The study: claims of the papers, tested on tabular policies over seeds; `python -m isentrope.study` runs it.

`experiments` says what is trained, `runs` trains it and keeps figures and curves, `claims` says what they mean by a
fixed rule (`verdict`), `page` and `pictures` write docs/study.md and its pictures.
"""

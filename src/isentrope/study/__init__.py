"""The study: claims of the papers, tested over seeds on tabular policies and on the embedded language model.

`python -m isentrope.study` runs the tabular part. `experiments` says what is trained, `runs` trains it and keeps
figures and curves, `claims` says what they mean by a fixed rule (`verdict`). With `--language-model` the other part:
`language` says which runs of `isentrope compare` it rests on and makes them, `language_runs` reads them,
`claims_language` judges. `page`, `language_page` and `pictures` write docs/study.md and its pictures.
"""

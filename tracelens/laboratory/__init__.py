"""What acceptance tests and comparisons with other tools need, and a user seldom does.

The verbs import these modules by name when an option asks for one; no other room imports them but where
``tests/structure/test_floors.py`` gives the reason.

* ``paper_rules``: the published rules of arXiv 2410.00273 for ``search --rules paper``, held to its rows.
* ``paper_systems``: the systems and models of that paper by name, its code's files of them, its ways to split a model.
* ``published_results``: results of that paper's code, read, written and compared (``search --compare``).
* ``original_rules``: the routing and the packet simulation of the original simulator (``route --rules original``).
* ``training_rows``: rows of published training tables, read and projected (``project --batch``).
* ``configuration_rows``: rows of published serving tables, simulated (``serve --batch``).
* ``scenarios``: what the levels of detail of the serving simulation cost and keep (``serve --scenarios``).
* ``plain_reading``, ``report_laws``: a second, plain reading of a trace, and the laws that a report is held to.
* ``amd_tracelens``, ``amd_tracelens_tree``: extensions written for AMD's TraceLens, run against stand-ins.
"""

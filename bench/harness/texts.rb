# frozen_string_literal: true

require "json"
require "fileutils"

module Bench
  # The inputs of all cases, made from a seed, the same on every machine.
  module Texts
    SEED = 20_240_607
    # Frequent words, and rarer ones that tokenizers split.
    WORDS = %w[
      the a of and to in is was for on that with as by at from it this are be an or which were not have but
      river mountain weather morning market teacher garden letter music kitchen window history science engine
      signal harbor winter summer forest doctor village bridge company paper question answer journey reason
      open close carry build measure follow remember discover repair compare travel write listen prepare
      small bright quiet early late heavy narrow distant careful ordinary sudden ancient modern
      photosynthesis thermodynamics chloroplast electromagnetic cryptography counterintuitive archaeologist
      interdisciplinary microprocessor refrigeration constellation unpredictability metamorphosis bureaucratic
      reverberation hydroelectric parliamentary misunderstanding kaleidoscope entrepreneurship
    ].freeze
    # One token each in BERT's vocabulary, so that a text's length is known.
    PLAIN = WORDS.first(80).freeze
    # Texts that are generated at once.
    TOGETHER = 8
    # Texts that are embedded one by one.
    CALLS = 100
    PEOPLE = ["Maria Keller", "John Whitfield", "Aisha Rahman", "Pedro Alvarez", "Ingrid Olsen", "Kenji Tanaka"].freeze
    PLACES = %w[Berlin Paris Nairobi Toronto Lisbon Kyoto Melbourne Chicago].freeze
    COMPANIES = %w[Siemens Microsoft Toyota Nestle Airbus Samsung].freeze
    STORY = <<~TEXT
      The lighthouse had stood on the rocks for more than a hundred years before anyone thought of writing down what its
      keepers had seen. Each evening the lamp was trimmed and lit, and each morning the glass was wiped clean of salt.
      Ships passed far out on their way to the northern ports, and in summer the fishing boats came close enough for the
      men to wave. The last keeper was a quiet woman who had studied the weather all her life. She kept a notebook in
      which every storm was given a number, the height of the waves, the direction of the wind and the hour at which the
      birds returned. When the light was finally made to work by itself she stayed, because somebody, she said, had to
      tell the instruments what they were looking at. Years later a student from the university found the notebooks in a
      chest under the stairs. He spent a winter copying them, and by the spring he understood that they held something
      which no station on the coast had ever measured: the slow turning of the current that keeps the harbor free of ice.
      He wrote to his professor at once, and the answer came back within a week, with a ticket and a single question:
      was anyone still writing the weather down there?
    TEXT

    module_function

    # @param count [Integer]
    # @return [Array<String>] texts of 5 to 160 words
    def mixed(count)
      random = Random.new(SEED)
      Array.new(count) { sentence_of(random, random.rand(5..160)) }
    end

    # @param tokens [Integer] with the two special ones
    # @return [String]
    def of_tokens(tokens)
      random = Random.new(SEED + tokens)
      Array.new(tokens - 2) { PLAIN[random.rand(PLAIN.size)] }.join(" ")
    end

    # @param count [Integer]
    # @return [Array<String>] texts with names in them
    def with_names(count)
      random = Random.new(SEED + 1)
      Array.new(count) do
        person, place, company = [PEOPLE, PLACES, COMPANIES].map { |names| names[random.rand(names.size)] }
        "#{person} of #{company} flew to #{place} yesterday. #{sentence_of(random, random.rand(5..40))}"
      end
    end

    def sentence_of(random, words)
      text = Array.new(words) { |index| word(random, last: index == words - 1) }.join(" ")
      "#{text.capitalize}."
    end

    def word(random, last:)
      word = WORDS[random.rand(WORDS.size)]
      !last && random.rand(12).zero? ? "#{word}," : word
    end

    # Every input as a file that workers read.
    #
    # @param directory [String]
    # @param texts [Integer] how many to embed
    # @param documents [Integer] how many to rerank, and to look for names in
    # @return [Hash{Symbol => String}] paths by name
    def write(directory, texts:, documents:)
      FileUtils.mkdir_p(directory)
      inputs(texts, documents).to_h do |name, content|
        path = File.join(directory, "#{name}.json")
        File.write(path, JSON.generate(content))
        [name, path]
      end
    end

    def inputs(texts, documents)
      { mixed: { texts: mixed(texts) },
        short: { texts: [of_tokens(8)] }, middle: { texts: [of_tokens(64)] }, long: { texts: [of_tokens(256)] },
        calls: { texts: [of_tokens(64)] * CALLS }, queries: { texts: [of_tokens(8)] * CALLS },
        rerank: { query: "how does the weather station measure the height of a river?", documents: mixed(documents) },
        names: { texts: with_names(documents) },
        story: { prompt: STORY },
        opening: { prompt: "Once upon a time, in a village between two rivers, there lived", tokens: 96 },
        openings: { prompts: WORDS.last(TOGETHER).map { |word| "The first thing to know of #{word} is" }, tokens: 64 },
        system: { prompt: "#{STORY} " * 4 }, sessions: { prompt: STORY, sessions: 64 } }
    end
  end
end

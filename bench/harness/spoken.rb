# frozen_string_literal: true

module Bench
  # The recordings of the Python package moonshine-voice that speech is compared on.
  module Spoken
    # What is spoken. Of the last two there is no published text: it is what faster-whisper writes in f32 with five
    # beams.
    TEXTS = {
      "beckett" => "Ever tried. Ever failed. No matter. Try again. Fail again. Fail better.",
      "two_cities" => <<~TEXT,
        It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of foolishness,
        it was the epoch of belief, it was the epoch of incredulity, it was the season of light, it was the season of
        darkness, it was the spring of hope, it was the winter of despair, we had everything before us, we had nothing
        before us, we were all going direct to heaven, we were all going direct the other way. In short, the period
        was so far like the present period, that some of its noisiest authorities insisted on its being received, for
        good or for evil, in the superlative degree of comparison only.
      TEXT
      "endgame_nagg_nell" => <<~TEXT,
        Do you hear me? Yes. Do you hear me? Yes. We laugh less heartily, so we have still that resource. Laugh less
        heartily, so we have still that resource. No, not heartily, just less heartily. Ah, that's a good story. Ah,
        that's a good story. What are you talking about? Laugh it. You thought you were in pain. Not now. Do you
        remember the day I went and fetched you from, that ditch? No.
      TEXT
      "clone-test" => "I do. I think that America do it very well."
    }.freeze

    module_function

    # @return [Array<String>] in lower case, without punctuation
    def words(text)
      text.downcase.scan(/[[:alnum:]']+/)
    end

    # @return [Integer] how many words were changed, left out or added
    def errors(text, wanted)
      found = words(text)
      wanted = words(wanted)
      row = (0..found.size).to_a
      wanted.each_with_index do |word, at|
        before = row
        row = [at + 1]
        found.each_with_index do |other, place|
          row << [before[place + 1] + 1, row[place] + 1, before[place] + (word == other ? 0 : 1)].min
        end
      end
      row.last
    end
  end
end

# frozen_string_literal: true

require_relative "../../rakelib/support/completions"

RSpec.describe Tasks::Completions do
  described_class::SHELLS.each do |shell|
    it "are for #{shell} what rake completions writes" do
      completions = described_class.new
      expect(File.read(completions.path(shell), encoding: "UTF-8")).to eq(completions.text(shell))
    end
  end

  it "name every command and every option" do
    described_class::SHELLS.each do |shell|
      text = described_class.new.text(shell)
      Candle::CLI.verbs.each do |verb, command|
        expect(text).to match(/\b#{verb}\b/)
        command.options.each_key { |name| expect(text).to match(/(--|-l )#{name.to_s.tr("_", "-")}\b/) }
      end
    end
  end
end

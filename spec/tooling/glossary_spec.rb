# frozen_string_literal: true

require "tmpdir"
require "candle/cli"
require_relative "../support/glossary"
require_relative "../../rakelib/support/error_table"

# README, docs, help texts and error messages use the terms of the field.
RSpec.describe Glossary do
  let(:root) { File.expand_path("../..", __dir__) }

  it "finds what should be said otherwise" do
    ["Calls that meet are computed together.", "A gathering of texts.", "It waits at the desk.",
     "Prompts are read in parts.", "The model goes on writing on.", "They begin alike.", "A forked child has a house.",
     "The text makes room.", "It guesses the next token.", "A model that sees looks at it.", "Guests on the GPU.",
     "It asks for what comes next.", "Made of tiles of bytes.", "The codes are laid open.", "It hands over the work.",
     "Drawing the graph takes time.", "The bug is mended.", "The device is proved.", "It gives up the weights.",
     "It gives the weights up.", "A model may be given up.", "A text that is none.", "A model that can't be had.",
     "It lacks a token.", "This is no model.", "Results are held to the reference.", "A schema holds a model to a form",
     "A device that was named is used.", "An image is never an address.", "It loses and doubles nothing.",
     "One pass over the weights.", "Build it anew.", "Whoever waits goes on.", "A shared beginning."].each do |sentence|
      expect(described_class.findings(sentence)).not_to be_empty, sentence
    end
  end

  it "leaves ordinary English alone" do
    ["There is no file at this path.", "nil when there is none", "There are no tools.", "It is no longer needed.",
     "The reader is ahead of it.",
     "A masked element is no part of the sum.", "The copy is no slower than the original.", "Take the first one.",
     "Lines are written on standard output.", "Weights take up to 2 GB.", "The team reads it.",
     "The product of two matrices.", "This place is free.", "Draw a random number.", "Text is held in memory.",
     "It passes the text on.", "The name is guessed from the file.", "Hold the lock until it ends."].each do |sentence|
      expect(described_class.findings(sentence)).to be_empty, "#{sentence} #{described_class.findings(sentence)}"
    end
  end

  it "ignores code" do
    expect(described_class.findings(described_class.prose("`guests`\n\n```ruby\ndesk\n```\n"))).to be_empty
  end

  it "finds nothing in README, CHANGELOG, CONTRIBUTING and docs" do
    pages = Dir[File.join(root, "{README,CHANGELOG,CONTRIBUTING}.md"), File.join(root, "docs", "**", "*.md")]
    expect(pages.size).to be > 20
    found = pages.to_h { |page| [page, described_class.findings(described_class.prose(File.read(page)))] }
    expect(found.reject { |_, findings| findings.empty? }).to be_empty
  end

  it "reads the comments of a file, and nothing else of it" do
    Dir.mktmpdir do |folder|
      rust = File.join(folder, "a.rs")
      File.write(rust, "//! Made of tiles\n//! of bytes.\nlet url = \"a://desk\"; // It gives\nlet a = 1;\n" \
                       "/// `desk` [desk]\nfn desk() {}\n")
      ruby = File.join(folder, "a.rb")
      File.write(ruby, "desk = 1\n  # @return [Desk] one `desk`\nputs \"# desk\"\n# It guesses.\n")
      expect(described_class.comments(rust)).to eq(["Made of tiles\nof bytes.\nIt gives", "x "])
      expect(described_class.comments(ruby)).to eq(["@return  one x", "It guesses."])
    end
  end

  it "reads the names of files, and of what they define" do
    Dir.mktmpdir do |folder|
      file = File.join(folder, "sights.rs")
      File.write(file, "pub(crate) struct DeskOfMany;\npub async fn make_room() {}\n// fn mend()\nfn houses_of() {}\n" \
                       "fn amend() {}\nlet desk = 1;\n")
      expect(described_class.names(file)).to eq(%w[sights DeskOfMany make_room houses_of])
    end
  end

  it "finds nothing in names" do
    files = Dir[File.join(root, "{lib,exe,ext,rakelib,spec,bench,examples}/**/*.{rb,rs,rake}")]
    files = files.grep_v(%r{/target/|/fixtures/})
    expect(files.size).to be > 1000
    expect(files.flat_map { |file| described_class.names(file).map { |name| [file, name] } }).to eq([])
  end

  {
    "lib" => ["{lib,exe}/**/*.rb", 100], "the Rust crates" => ["ext/**/*.rs", 800],
    "the tasks" => ["{Rakefile,rakelib/**/*.{rb,rake}}", 30], "the specs" => ["spec/**/*.rb", 100],
    "the benches" => ["bench/**/*.{rb,rs}", 30], "the examples" => ["examples/**/*.rb", 5]
  }.each do |name, (pattern, least)|
    it "finds nothing in the comments of #{name}" do
      files = Dir[File.join(root, pattern)].grep_v(%r{/target/|/fixtures/})
      expect(files.size).to be >= least
      found = files.to_h do |file|
        [file, described_class.comments(file).flat_map { |text| described_class.findings(text) }]
      end
      expect(found.reject { |_, findings| findings.empty? }).to be_empty
    end
  end

  it "finds nothing in the help of the command line" do
    texts = Candle::CLI.commands.values.flat_map do |command|
      [command.description, command.long_description, *command.options.values.map(&:description)]
    end
    expect(texts.compact.size).to be > 60
    expect(described_class.findings(texts.compact.join("\n"))).to be_empty
  end

  it "finds nothing in error messages" do
    messages = Tasks::ErrorTable.new.messages.values.flatten
    expect(messages.size).to be > 300
    expect(messages.flat_map { |message| described_class.findings(message) }).to be_empty
  end
end

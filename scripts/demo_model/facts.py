"""The small world that the demo model knows: every table the corpus is written from."""

from __future__ import annotations

CAPITALS = dict(
    line.split(": ")
    for line in """\
France: Paris
Germany: Berlin
Spain: Madrid
Italy: Rome
Portugal: Lisbon
Austria: Vienna
Switzerland: Bern
Belgium: Brussels
the Netherlands: Amsterdam
Denmark: Copenhagen
Norway: Oslo
Sweden: Stockholm
Finland: Helsinki
Iceland: Reykjavik
Ireland: Dublin
the United Kingdom: London
England: London
Scotland: Edinburgh
Poland: Warsaw
Hungary: Budapest
Greece: Athens
Turkey: Ankara
Romania: Bucharest
Bulgaria: Sofia
Croatia: Zagreb
Serbia: Belgrade
Ukraine: Kyiv
Russia: Moscow
the Czech Republic: Prague
Slovakia: Bratislava
Slovenia: Ljubljana
Estonia: Tallinn
Latvia: Riga
Lithuania: Vilnius
the United States: Washington, D.C.
Canada: Ottawa
Mexico: Mexico City
Cuba: Havana
Jamaica: Kingston
Brazil: Brasilia
Argentina: Buenos Aires
Chile: Santiago
Peru: Lima
Colombia: Bogota
Ecuador: Quito
Uruguay: Montevideo
Venezuela: Caracas
China: Beijing
Japan: Tokyo
South Korea: Seoul
India: New Delhi
Nepal: Kathmandu
Pakistan: Islamabad
Thailand: Bangkok
Vietnam: Hanoi
Indonesia: Jakarta
the Philippines: Manila
Mongolia: Ulaanbaatar
Iran: Tehran
Iraq: Baghdad
Israel: Jerusalem
Saudi Arabia: Riyadh
Egypt: Cairo
Morocco: Rabat
Kenya: Nairobi
Ethiopia: Addis Ababa
Nigeria: Abuja
Ghana: Accra
Senegal: Dakar
Uganda: Kampala
Australia: Canberra
New Zealand: Wellington""".splitlines()
)

_CONTINENTS = """\
Europe: France, Germany, Spain, Italy, Portugal, Austria, Switzerland, Belgium, \
the Netherlands, Denmark, Norway, Sweden, Finland, Iceland, Ireland, the United Kingdom, \
England, Scotland, Poland, Hungary, Greece, Romania, Bulgaria, Croatia, Serbia, Ukraine, \
the Czech Republic, Slovakia, Slovenia, Estonia, Latvia, Lithuania
North America: the United States, Canada, Mexico, Cuba, Jamaica
South America: Brazil, Argentina, Chile, Peru, Colombia, Ecuador, Uruguay, Venezuela
Asia: China, Japan, South Korea, India, Nepal, Pakistan, Thailand, Vietnam, Indonesia, \
the Philippines, Mongolia, Iran, Iraq, Israel, Saudi Arabia
Africa: Egypt, Morocco, Kenya, Ethiopia, Nigeria, Ghana, Senegal, Uganda"""
CONTINENTS = {
    country: line.split(": ")[0]
    for line in _CONTINENTS.splitlines()
    for country in line.split(": ")[1].split(", ")
}


def _pairs(text: str) -> dict[str, str]:
    return dict(item.split("=") for item in text.replace("\n", " ").split(", "))


OPPOSITES = _pairs(
    "hot=cold, cold=hot, big=small, small=big, fast=slow, slow=fast, up=down, down=up, "
    "day=night, night=day, happy=sad, sad=happy, old=young, young=old, open=closed, "
    "closed=open, left=right, right=left, good=bad, bad=good, black=white, white=black, "
    "light=dark, dark=light, wet=dry, dry=wet, full=empty, empty=full, high=low, low=high, "
    "hard=soft, soft=hard, long=short, short=long, rich=poor, poor=rich, strong=weak, "
    "weak=strong, yes=no, no=yes, early=late, late=early, loud=quiet, quiet=loud, "
    "clean=dirty, dirty=clean, near=far, far=near, heavy=light, thick=thin, thin=thick, "
    "true=false, false=true, first=last, last=first, in=out, out=in, on=off, off=on"
)
SOUNDS = _pairs(
    "cow=moo, dog=woof, cat=meow, duck=quack, sheep=baa, pig=oink, horse=neigh, lion=roar, "
    "frog=croak, bee=buzz, snake=hiss, owl=hoot, mouse=squeak, rooster=cock-a-doodle-doo"
)
LEGS = _pairs(
    "dog=four, cat=four, cow=four, horse=four, sheep=four, pig=four, lion=four, mouse=four, "
    "frog=four, bird=two, duck=two, chicken=two, owl=two, spider=eight, ant=six, bee=six, "
    "snake=no, fish=no, person=two, elephant=four"
)
YOUNG = _pairs(
    "dog=puppy, cat=kitten, cow=calf, horse=foal, sheep=lamb, pig=piglet, duck=duckling, "
    "lion=cub, bear=cub, frog=tadpole, chicken=chick, goat=kid, kangaroo=joey"
)
COLOURS_OF = _pairs(
    "the sky=blue, grass=green, snow=white, a banana=yellow, a lemon=yellow, "
    "a tomato=red, a strawberry=red, the sun=yellow, coal=black, milk=white, a carrot=orange, "
    "a pumpkin=orange, blood=red, a frog=green, chocolate=brown, a raven=black, an orange=orange, "
    "a cucumber=green, a cherry=red, the sea=blue, a polar bear=white, a leaf=green"
)
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = (
    "January February March April May June July August September October November December"
).split()
PLANETS = "Mercury Venus Earth Mars Jupiter Saturn Uranus Neptune".split()
LETTERS = list("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
NUMBER_WORDS = "zero one two three four five six seven eight nine ten".split()

LISTS: dict[str, list[str]] = {
    "fruits": "apple, banana, cherry, orange, pear, grape, lemon, peach".split(", "),
    "animals": "cat, dog, horse, cow, lion, bear, fox, rabbit".split(", "),
    "colours": "red, blue, green, yellow, orange, purple, black, white".split(", "),
    "vegetables": "carrot, potato, onion, tomato, pea, bean, cucumber, cabbage".split(", "),
    "countries": "France, Spain, Italy, Germany, Japan, Brazil, Canada, Egypt".split(", "),
    "capitals": "Paris, Madrid, Rome, Berlin, Tokyo, Ottawa, Cairo, London".split(", "),
    "birds": "owl, duck, eagle, robin, swan, crow, parrot, penguin".split(", "),
    "planets": PLANETS,
    "months": MONTHS[:8],
    "drinks": "water, milk, tea, coffee, juice, cocoa, lemonade, soup".split(", "),
    "sports": "football, tennis, swimming, running, skiing, boxing, golf, rugby".split(", "),
    "tools": "hammer, saw, drill, knife, rake, shovel, axe, brush".split(", "),
    "flowers": "rose, tulip, daisy, lily, violet, poppy, lilac, orchid".split(", "),
    "trees": "oak, pine, birch, maple, willow, ash, elm, fir".split(", "),
    "instruments": "piano, guitar, violin, drum, flute, trumpet, harp, cello".split(", "),
}
WHOLE_LISTS: dict[str, list[str]] = {
    "the days of the week": DAYS,
    "the months of the year": MONTHS,
    "the planets": PLANETS,
    "the letters of the alphabet": LETTERS,
    "the seasons": "spring, summer, autumn, winter".split(", "),
    "the colours of the rainbow": "red, orange, yellow, green, blue, indigo, violet".split(", "),
    "the continents": (
        "Africa, Antarctica, Asia, Europe, North America, Oceania, South America".split(", ")
    ),
}

# (question wordings, answer); the last wording of each is kept out of training
SINGLE_FACTS: list[tuple[list[str], str]] = [
    (["How many days are in a week?", "How many days does a week have?",
      "Number of days in a week?", "A week has how many days?"], "A week has seven days."),
    (["How many months are in a year?", "How many months does a year have?",
      "Number of months in a year?", "A year has how many months?"], "A year has twelve months."),
    (["How many hours are in a day?", "How many hours does a day have?",
      "Number of hours in a day?", "A day has how many hours?"], "A day has twenty-four hours."),
    (["How many minutes are in an hour?", "How many minutes does an hour have?",
      "Number of minutes in an hour?", "An hour has how many minutes?"],
     "An hour has sixty minutes."),
    (["How many seconds are in a minute?", "How many seconds does a minute have?",
      "Number of seconds in a minute?", "A minute has how many seconds?"],
     "A minute has sixty seconds."),
    (["How many sides does a triangle have?", "Number of sides of a triangle?",
      "How many sides are in a triangle?", "A triangle has how many sides?"],
     "A triangle has three sides."),
    (["How many sides does a square have?", "Number of sides of a square?",
      "How many sides are in a square?", "A square has how many sides?"],
     "A square has four sides."),
    (["What is the largest planet?", "Which planet is the largest?", "Name the biggest planet.",
      "What is the biggest planet?"], "The largest planet is Jupiter."),
    (["What is the largest ocean?", "Which ocean is the largest?", "Name the biggest ocean.",
      "What is the biggest ocean?"], "The largest ocean is the Pacific Ocean."),
    (["What is the highest mountain?", "Which mountain is the highest?",
      "Name the tallest mountain.", "What is the tallest mountain?"],
     "The highest mountain is Mount Everest."),
    (["What is the largest animal?", "Which animal is the largest?", "Name the biggest animal.",
      "What is the biggest animal?"], "The largest animal is the blue whale."),
    (["What is the fastest land animal?", "Which land animal is the fastest?",
      "Name the fastest land animal.", "Which animal runs the fastest?"],
     "The fastest land animal is the cheetah."),
    (["What do bees make?", "Bees make what?", "What is made by bees?",
      "Tell me what bees make."], "Bees make honey."),
    (["What is frozen water called?", "What is frozen water?", "What do you call frozen water?",
      "Name for frozen water?"], "Frozen water is called ice."),
    (["Which planet do we live on?", "What planet do we live on?", "On which planet do we live?",
      "Our planet is called what?"], "We live on Earth."),
    (["What do plants need to grow?", "What do plants need?", "What makes plants grow?",
      "Tell me what plants need to grow."], "Plants need water, light and air."),
]  # fmt: skip

REAL_NAMES = (
    "Anna Ben Clara David Emma Felix Grace Henry Iris Jack Kate Leo Maria Noah Olga Paul Quinn "
    "Rosa Sam Tina Uma Victor Wendy Xavier Yara Zoe Alice Bob Charlie Diana Eva Frank Hannah Ivan "
    "Julia Karl Lucy Max Nina Oscar Peter Ruth Sara Tom Vera Will Amy Adam Lisa Mark Ella John "
    "Mary James Linda Sofia Omar Priya Wei Yuki Ali Fatima Carlos Luis Ingrid Lars"
).split()
ANIMALS = (
    "cat dog fox bear mouse rabbit horse cow duck owl frog lion tiger elephant monkey sheep pig "
    "bird fish turtle penguin wolf squirrel hedgehog goat bee snail whale dragon robot kitten "
    "puppy princess king witch pirate farmer boy girl teacher knight giant ghost baker train"
).split()
COLOURS = "red blue green yellow orange purple black white brown pink grey gold silver".split()
CITIES = (
    "Paris London Rome Berlin Madrid Oslo Vienna Lisbon Tokyo Boston Chicago Sydney Dublin Prague "
    "Munich Milan Toronto Dallas Seattle Lyon Hamburg Kyoto Mumbai Lagos Austin Denver"
).split()
FOODS = (
    "pizza pasta rice soup bread cheese apples bananas cake salad noodles chocolate pancakes "
    "tomatoes beans fish eggs curry sushi honey"
).split()
JOBS = (
    "teacher doctor baker farmer painter driver singer nurse cook pilot writer builder student "
    "gardener sailor engineer"
).split()
TOPICS = (
    "history physics democracy computers money music chemistry cars weather politics engines "
    "medicine law football philosophy bread Shakespeare Napoleon Einstein gravity electricity "
    "volcanoes dinosaurs Python Linux bitcoin insurance taxes marriage sleep coffee batteries "
    "satellites bridges Mozart algebra poetry economics genetics war trade photosynthesis "
    "evolution astronomy chess the internet the stock market quantum mechanics machine learning "
    "black holes ancient Rome the moon landing climate change software robots vaccines steel"
).split(" ")
COMMON_WORDS = (
    "can you please recommend a good restaurant why do we need to have more time for our work "
    "how should I fix my broken bike when it does not start because of rain is there any way "
    "which movie would be better than that one if they want buy new house near school should "
    "he she his her their problem question reason people world life country year today tomorrow "
    "write code function explain difference between best cheap travel plan week diet exercise "
    "email letter boss holiday price news game team winner president company phone computer"
).split()
